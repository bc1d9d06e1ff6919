// What every codec must do, whatever it is. A codec's test file passes it with one line:
//   INSTANTIATE_TEST_SUITE_P(Int8, CodecConformance,
//                            ::testing::Values(CodecCase{"int8", 0.5 / 127}), case_name);
// Each test runs under all instruction sets of this machine.
#pragma once

#include "tests/support/codec_harness.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace tersor::test {

/// A spec, and the largest error that it may make in relation to the largest value of a segment.
struct CodecCase {
  const char* spec;
  double error;
  /// How far the decode of several frames may lie from the sum of their decodes, in parts of its
  /// norm; 0: they are the same bits.
  double sums = 0;
};

inline void PrintTo(const CodecCase& codec, std::ostream* out) { *out << codec.spec; }

/// The spec as a name that GoogleTest accepts.
std::string case_name(const ::testing::TestParamInfo<CodecCase>& info);

class CodecConformance : public ::testing::TestWithParam<CodecCase> {
 protected:
  CodecConformance();

  std::string spec() const { return GetParam().spec; }
  bool divisible() const { return make_codec(spec())->traits().divisible; }
  std::size_t unit() const { return make_codec(spec())->traits().unit; }
  /// Whether some values only are sent.
  bool is_sparse() const;
  bool allows(Exchange exchange) const;
  bool has_feedback() const { return make_codec(spec())->has_feedback(); }
};

inline const std::vector<std::size_t> kCounts = {0, 1, 255, 256, 257, 7919, 1'000'001};
/// Counts that are worth their time with 16-bit gradients, too.
inline bool is_quick(std::size_t count, Dtype dtype) {
  return count < 100'000 || dtype == Dtype::kF32;
}
inline const std::vector<Dtype> kGradientDtypes = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};

/// Runs `body` under each instruction set that there is; failures say which one it was.
void for_each_isa(const std::function<void()>& body);

}  // namespace tersor::test
