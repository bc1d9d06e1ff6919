// int4 against a reference written from the format alone, and what only this codec promises.

#include "tests/codecs/quantize_checks.h"

#include <tersor/codecs/int4.h>

namespace tersor::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Int4, CodecConformance,
                         ::testing::Values(CodecCase{"int4", 0.5 / 7},
                                           CodecCase{"int4+ef", 0.5 / 7},
                                           CodecCase{"int4:rounding=stochastic", 1.0 / 7},
                                           CodecCase{"int4:rounding=stochastic+ef", 1.0 / 7}),
                         case_name);

const QuantizeBytes kNearest = {{.levels = 7, .block = 128}, 4};
const QuantizeBytes kStochastic = {{.levels = 7, .block = 128, .stochastic = true}, 4};

TEST(Int4, WritesTheBytesOfTheFormat) {
  expect_reference_bytes("int4", kNearest);
  expect_reference_bytes("int4+ef", kNearest);
  expect_reference_bytes("int4:rounding=stochastic", kStochastic);
  expect_reference_bytes("int4:rounding=stochastic+ef", kStochastic);
}

TEST(Int4, DecodesByTheFormulasOfTheFormat) {
  for_each_isa([] {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16})
      expect_reference_decode("int4", kNearest.task, dtype);
  });
}

TEST(Int4, ReducesByTheFormulasOfTheFormat) {
  for_each_isa([] { expect_reference_reduce("int4+ef", kNearest); });
}

TEST(Int4, AnOverflowPoisonsItsOwnBlockOnly) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    CodecHarness harness("int4", {3 * Int4Layout::kBlock});
    std::vector<float> gradient(3 * Int4Layout::kBlock, 1.0f);
    gradient[Int4Layout::kBlock + 3] = bad;
    harness.set_gradient(gradient);
    harness.decode({harness.encode()});
    const std::vector<float> decoded = harness.output();
    for (std::size_t i = 0; i < decoded.size(); ++i)
      ASSERT_EQ(std::isnan(decoded[i]), i / Int4Layout::kBlock == 1) << i;
    EXPECT_EQ(decoded.back(), 1.0f) << bad;
  }
}

TEST(Int4, APoisonedBlockKeepsItsResidual) {
  CodecHarness harness("int4+ef", {2 * Int4Layout::kBlock});
  std::vector<float> gradient = harness.gradient();
  gradient[1] = INFINITY;
  harness.set_gradient(gradient);
  const std::vector<float> before = harness.residual_in();
  harness.encode();
  const std::vector<float> after = harness.residual_out();
  for (std::size_t i = 0; i < Int4Layout::kBlock; ++i) ASSERT_EQ(after[i], before[i]) << i;
  EXPECT_NE(after.back(), before.back());
}

TEST(Int4, TinyBlocksWaitInTheResidual) {
  CodecHarness harness("int4+ef", {300}, {.scale = 0x1p-110f});
  harness.decode({harness.encode()});
  EXPECT_EQ(harness.output(), std::vector<float>(300, 0.0f));
  EXPECT_TRUE(same_values(harness.residual_out(), harness.sent()));
}

TEST(Int4, NearestAndResidualAreExact) {
  CodecHarness harness("int4+ef", {100'000});
  harness.set_gradient(difficult_values(100'000, 8));
  harness.decode({harness.encode()});
  const std::vector<float> sent = harness.sent(), decoded = harness.output();
  const std::vector<float> residual = harness.residual_out();
  for (std::size_t i = 0; i < sent.size(); ++i) ASSERT_EQ(decoded[i] + residual[i], sent[i]) << i;
}

TEST(Int4, TheLargestValueOfABlockIsTheLargestCode) {
  CodecHarness harness("int4:rounding=stochastic", {Int4Layout::kBlock});
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    harness.draw(seed);
    const GuardedBytes frame = harness.encode();
    harness.decode({frame});
    float most = 0, scale;
    for (const float value : harness.output()) most = std::max(most, std::fabs(value));
    std::memcpy(&scale, frame.span().data() + sizeof(FrameHeader), sizeof scale);
    ASSERT_EQ(most, 7 * scale) << seed;
  }
}

TEST(Int4, StochasticRoundingIsRightOnAverage) {
  // A step is about 3.5 / 7 of a Gaussian gradient. The mean of 400 draws is off by a twentieth of
  // half a step at most; nearest rounding would be off by a quarter of a step, always.
  const double step = 3.5 / 7;
  EXPECT_LT(mean_error_of_draws("int4:rounding=stochastic", 400), 0.03 * step);
  EXPECT_GT(mean_error_of_draws("int4", 2), 0.15 * step);
}

TEST(Int4, EveryStepKeyAndParameterDrawsOtherNumbers) {
  CodecHarness harness("int4:rounding=stochastic", {3000});
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

TEST(Int4, RoundsAreTwoShotThenGather) {
  const Plan plan = CodecHarness("int4", {1000}).plan();
  ASSERT_EQ(plan.rounds.size(), 1u);
  EXPECT_EQ(plan.rounds[0].exchanges, (std::vector{Exchange::kTwoShot, Exchange::kGather}));
  EXPECT_EQ(plan.frame_bytes, sizeof(FrameHeader) + Int4Layout{1000}.bytes());
}

}  // namespace
}  // namespace tersor::test
