// A test-only format (tests/support/fp8.h) compared with the E4M3 standard. A new format needs one
// header and one line of a list, and inherits all properties of quantize formats.

#include "tests/codecs/quantize_checks.h"

#include <tersor/codecs/scaled_codes.h>

namespace tersor::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Fp8, CodecConformance,
                         ::testing::Values(CodecCase{"fp8", 16.0 / 448},
                                           CodecCase{"fp8+ef", 16.0 / 448},
                                           CodecCase{"fp8:rounding=stochastic", 32.0 / 448},
                                           CodecCase{"fp8:rounding=stochastic+ef", 32.0 / 448}),
                         case_name);

using Layout = ScaledCodes<256, 8>;

/// The value of a code: 4 exponent bits and 3 mantissa bits.
double value_of(unsigned code) {
  const int exponent = static_cast<int>(code >> 3 & 15), digits = static_cast<int>(code & 7);
  const double magnitude =
      exponent == 0 ? std::ldexp(digits, -9) : std::ldexp(8 + digits, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

/// The distance to the nearest value of any code.
double nearest_distance(double value) {
  double least = INFINITY;
  for (unsigned code = 0; code < 0x7f; ++code)
    least = std::min(least, std::fabs(std::fabs(value) - value_of(code)));
  return least;
}

TEST(Fp8, CodesAreTheNearest) {
  for_each_isa([] {
    CodecHarness harness("fp8", {3000});
    harness.set_gradient(difficult_values(3000, 5));
    const GuardedBytes frame = harness.encode();
    const std::byte* payload = frame.span().data() + sizeof(FrameHeader);
    const std::vector<float> sent = harness.sent();
    for (std::size_t i = 0; i < sent.size(); ++i) {
      float scale;
      std::memcpy(&scale, payload + i / 256 * sizeof scale, sizeof scale);
      if (scale == 0) continue;
      const auto code = static_cast<unsigned>(payload[Layout{sent.size()}.codes_offset() + i]);
      const double wanted = static_cast<double>(sent[i]) / scale;
      ASSERT_NE(code & 0x7f, 0x7fu) << i;  // a NaN of E4M3
      ASSERT_LE(std::fabs(value_of(code) - wanted), nearest_distance(wanted) * 1.0001 + 1e-6) << i;
    }
    harness.decode({frame});
    const std::vector<float> decoded = harness.output();
    for (std::size_t i = 0; i < sent.size(); ++i) {
      float scale;
      std::memcpy(&scale, payload + i / 256 * sizeof scale, sizeof scale);
      const auto code = static_cast<unsigned>(payload[Layout{sent.size()}.codes_offset() + i]);
      ASSERT_EQ(decoded[i], static_cast<float>(value_of(code)) * scale) << i;
    }
  });
}

TEST(Fp8, StochasticRoundingIsRightOnAverage) {
  const double error = mean_error_of_draws("fp8", 2);
  EXPECT_LT(mean_error_of_draws("fp8:rounding=stochastic", 400), 0.2 * error);
}

}  // namespace
}  // namespace tersor::test
