// A call on the host and on the device under test, compared bitwise.
#pragma once

#include "tests/support/codec_harness.h"

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

namespace tersor::test {

class Pair {
 public:
  Pair(std::string_view spec, const std::vector<std::size_t>& counts, HarnessOptions options);

  void for_each(const std::function<void(CodecHarness&)>& body);

  /// Compares frames and residuals.
  void expect_same_encode();
  /// Compares values decoded from `frames` frames, assigned and added, with a factor.
  void expect_same_decode(std::size_t frames = 1);
  /// Compares frames and the owner's residuals. Does nothing if the codec does not reduce.
  void expect_same_reduce(std::size_t frames);
  /// Compares raw values, with factors, and the decoded values. Does nothing if the codec has no
  /// raw values.
  void expect_same_native();
  /// Compares the state words written by encode for the next step, in place and to separate memory.
  void expect_same_words();

 private:
  /// Frames of other gradients, equal in host and device memory.
  struct Frames {
    std::vector<GuardedBytes> host, device;
  };
  Frames make_frames(std::size_t frames);
  void expect_same_residuals() const;
  void expect_intact() const;

  CodecHarness host_, device_;
};

}  // namespace tersor::test
