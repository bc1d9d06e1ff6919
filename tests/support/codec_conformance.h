// Tests common to all codecs. A codec's test file instantiates the suite in one statement:
//   INSTANTIATE_TEST_SUITE_P(Int8, CodecConformance,
//                            ::testing::Values(CodecCase{"int8", 0.5 / 127}), case_name);
// Each test runs with every instruction set of the machine.
#pragma once

#include "tests/support/codec_harness.h"
#include "tests/support/grid.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace tersor::test {

/// A spec and the maximum error relative to the largest value of a segment.
struct CodecCase {
  const char* spec;
  double error;
  /// Maximum distance between the decode of several frames and the sum of the single decodes,
  /// relative to the norm of that sum. 0: both must be bitwise equal.
  double sums = 0;
};

inline void PrintTo(const CodecCase& codec, std::ostream* out) { *out << codec.spec; }

/// The spec as a valid GoogleTest name.
std::string case_name(const ::testing::TestParamInfo<CodecCase>& info);

class CodecConformance : public ::testing::TestWithParam<CodecCase> {
 protected:
  CodecConformance();
  /// Skips codecs for hosts only on a device.
  void SetUp() override;

  std::string spec() const { return GetParam().spec; }
  bool divisible() const { return make_codec(spec())->traits().divisible; }
  std::size_t unit() const { return make_codec(spec())->traits().unit; }
  /// True if only selected values are sent.
  bool is_sparse() const;
  bool allows(Exchange exchange) const;
  bool has_feedback() const { return make_codec(spec())->has_feedback(); }
};

inline const std::vector<std::size_t> kCounts = {
    0, 1, 255, 256, 257, 7919, grid_is_small() ? 150'001u : 1'000'001u};
/// True if a count is short enough to repeat the test with 16-bit gradients.
inline bool is_quick(std::size_t count, Dtype dtype) {
  return count < 100'000 || dtype == Dtype::kF32;
}
inline const std::vector<Dtype> kGradientDtypes = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};

/// Runs `body` with each available instruction set. Failures name the instruction set.
void for_each_isa(const std::function<void()>& body);

}  // namespace tersor::test
