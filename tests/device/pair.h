// The same call on the host and on the device under test, compared bit by bit.
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

  /// Frames and residuals.
  void expect_same_encode();
  /// Values decoded from `frames` frames, assigned and added, with a factor.
  void expect_same_decode(std::size_t frames = 1);
  /// Frames and the owner's residuals; nothing where the codec does not reduce.
  void expect_same_reduce(std::size_t frames);
  /// Bare values, with factors, and what they decode to; nothing where the codec has none.
  void expect_same_native();
  /// What encode writes for the next step, in place and elsewhere.
  void expect_same_words();

 private:
  /// Frames of other gradients, the same ones in host and device memory.
  struct Frames {
    std::vector<GuardedBytes> host, device;
  };
  Frames make_frames(std::size_t frames);
  void expect_same_residuals() const;
  void expect_intact() const;

  CodecHarness host_, device_;
};

}  // namespace tersor::test
