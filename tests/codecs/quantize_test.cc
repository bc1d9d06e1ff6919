// int8 and int4 compared with a reference written from the formats alone, and properties of
// quantizers only.

#include "tests/codecs/quantize_checks.h"

#include <tersor/codecs/int4.h>
#include <tersor/codecs/int8.h>

namespace tersor::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Int8, CodecConformance,
                         ::testing::Values(CodecCase{"int8", 0.5 / 127},
                                           CodecCase{"int8+ef", 0.5 / 127},
                                           CodecCase{"int8:rounding=stochastic", 1.0 / 127},
                                           CodecCase{"int8:rounding=stochastic+ef", 1.0 / 127}),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Int4, CodecConformance,
                         ::testing::Values(CodecCase{"int4", 0.5 / 7},
                                           CodecCase{"int4+ef", 0.5 / 7},
                                           CodecCase{"int4:rounding=stochastic", 1.0 / 7},
                                           CodecCase{"int4:rounding=stochastic+ef", 1.0 / 7}),
                         case_name);

struct QuantizeCase {
  const char* name;
  int levels;
  std::size_t block;
  unsigned bits;
  std::size_t bytes_of_1000;  // in a payload
};

void PrintTo(const QuantizeCase& codec, std::ostream* out) { *out << codec.name; }

class QuantizeCodecs : public ::testing::TestWithParam<QuantizeCase> {
 protected:
  std::string spec(const char* options = "") const {
    return GetParam().name + std::string(options);
  }
  std::size_t block() const { return GetParam().block; }
  QuantizeBytes nearest() const {
    return {{.levels = GetParam().levels, .block = block()}, GetParam().bits};
  }
  QuantizeBytes stochastic() const {
    return {{.levels = GetParam().levels, .block = block(), .stochastic = true}, GetParam().bits};
  }
};

INSTANTIATE_TEST_SUITE_P(
    Codecs, QuantizeCodecs,
    ::testing::Values(QuantizeCase{"int8", 127, Int8Layout::kBlock, 8, Int8Layout{1000}.bytes()},
                      QuantizeCase{"int4", 7, Int4Layout::kBlock, 4, Int4Layout{1000}.bytes()}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(QuantizeCodecs, MatchesReferenceBytes) {
  expect_reference_bytes(spec(), nearest());
  expect_reference_bytes(spec("+ef"), nearest());
  expect_reference_bytes(spec(":rounding=stochastic"), stochastic());
  expect_reference_bytes(spec(":rounding=stochastic+ef"), stochastic());
}

TEST_P(QuantizeCodecs, DecodeMatchesReference) {
  for_each_isa([&] {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16})
      expect_reference_decode(spec(), nearest().task, dtype);
  });
}

TEST_P(QuantizeCodecs, ReduceMatchesReference) {
  for_each_isa([&] { expect_reference_reduce(spec("+ef"), nearest()); });
}

TEST_P(QuantizeCodecs, NonFiniteValuePoisonsOnlyItsBlock) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    CodecHarness harness(spec(), {3 * block()});
    std::vector<float> gradient(3 * block(), 1.0f);
    gradient[block() + 3] = bad;
    harness.set_gradient(gradient);
    harness.decode({harness.encode()});
    const std::vector<float> decoded = harness.output();
    for (std::size_t i = 0; i < decoded.size(); ++i)
      ASSERT_EQ(std::isnan(decoded[i]), i / block() == 1) << i;
    EXPECT_EQ(decoded.back(), 1.0f) << bad;
  }
}

TEST_P(QuantizeCodecs, PoisonedBlockKeepsItsResidual) {
  CodecHarness harness(spec("+ef"), {2 * block()});
  std::vector<float> gradient = harness.gradient();
  gradient[1] = INFINITY;
  harness.set_gradient(gradient);
  const std::vector<float> before = harness.residual_in();
  harness.encode();
  const std::vector<float> after = harness.residual_out();
  for (std::size_t i = 0; i < block(); ++i) ASSERT_EQ(after[i], before[i]) << i;
  EXPECT_NE(after.back(), before.back());
}

TEST_P(QuantizeCodecs, ResidualKeepsTinyBlocks) {
  CodecHarness harness(spec("+ef"), {300}, {.scale = 0x1p-110f});
  harness.decode({harness.encode()});
  EXPECT_EQ(harness.output(), std::vector<float>(300, 0.0f));
  EXPECT_TRUE(same_values(harness.residual_out(), harness.sent()));
}

TEST_P(QuantizeCodecs, DecodedPlusResidualEqualsSent) {
  CodecHarness harness(spec("+ef"), {100'000});
  harness.set_gradient(difficult_values(100'000, 8));
  harness.decode({harness.encode()});
  const std::vector<float> sent = harness.sent(), decoded = harness.output();
  const std::vector<float> residual = harness.residual_out();
  for (std::size_t i = 0; i < sent.size(); ++i) ASSERT_EQ(decoded[i] + residual[i], sent[i]) << i;
}

TEST_P(QuantizeCodecs, LargestValueGetsLargestCode) {
  CodecHarness harness(spec(":rounding=stochastic"), {block()});
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    harness.draw(seed);
    const GuardedBytes frame = harness.encode();
    harness.decode({frame});
    float most = 0, scale;
    for (const float value : harness.output()) most = std::max(most, std::fabs(value));
    std::memcpy(&scale, frame.span().data() + sizeof(FrameHeader), sizeof scale);
    ASSERT_EQ(most, GetParam().levels * scale) << seed;
  }
}

TEST_P(QuantizeCodecs, StochasticRoundingIsUnbiased) {
  // A step is about 3.5 / levels of a Gaussian gradient. The mean of 400 draws is off by at most a
  // twentieth of half a step. Nearest rounding would always be off by a quarter of a step.
  const double step = 3.5 / GetParam().levels;
  EXPECT_LT(mean_error_of_draws(spec(":rounding=stochastic"), 400), 0.03 * step);
  EXPECT_GT(mean_error_of_draws(spec(), 2), 0.15 * step);
}

TEST_P(QuantizeCodecs, RandomBitsDependOnStepKeyAndParameter) {
  CodecHarness harness(spec(":rounding=stochastic"), {3000});
  const GuardedBytes frame = harness.encode();
  EXPECT_TRUE(same_bytes(harness.encode().span(), frame.span()));
  harness.words.step = 1;
  EXPECT_FALSE(same_bytes(harness.encode().span(), frame.span()));
  harness.words.step = 0;
  harness.random.key = 78;
  EXPECT_FALSE(same_bytes(harness.encode().span(), frame.span()));
  harness.random.key = 77;
  harness.segments[0].parameter = 8;
  EXPECT_FALSE(same_bytes(harness.encode().span(), frame.span()));
}

TEST_P(QuantizeCodecs, RoundsAreTwoShotThenGather) {
  const Plan plan = CodecHarness(spec(), {1000}).plan();
  ASSERT_EQ(plan.rounds.size(), 1u);
  EXPECT_EQ(plan.rounds[0].exchanges, (std::vector{Exchange::kTwoShot, Exchange::kGather}));
  EXPECT_EQ(plan.frame_bytes, sizeof(FrameHeader) + GetParam().bytes_of_1000);
}

}  // namespace
}  // namespace tersor::test
