// int8 against a reference written from the format alone, and what only this codec promises.

#include "tests/codecs/quantize_checks.h"

#include <tersor/codecs/int8.h>

namespace tersor::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Int8, CodecConformance,
                         ::testing::Values(CodecCase{"int8", 0.5 / 127},
                                           CodecCase{"int8+ef", 0.5 / 127},
                                           CodecCase{"int8:rounding=stochastic", 1.0 / 127},
                                           CodecCase{"int8:rounding=stochastic+ef", 1.0 / 127}),
                         case_name);

const QuantizeBytes kNearest = {{.levels = 127, .block = 256}, 8};
const QuantizeBytes kStochastic = {{.levels = 127, .block = 256, .stochastic = true}, 8};

TEST(Int8, WritesTheBytesOfTheFormat) {
  expect_reference_bytes("int8", kNearest);
  expect_reference_bytes("int8+ef", kNearest);
  expect_reference_bytes("int8:rounding=stochastic", kStochastic);
  expect_reference_bytes("int8:rounding=stochastic+ef", kStochastic);
}

TEST(Int8, DecodesByTheFormulasOfTheFormat) {
  for_each_isa([] {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16})
      expect_reference_decode("int8", kNearest.task, dtype);
  });
}

TEST(Int8, ReducesByTheFormulasOfTheFormat) {
  for_each_isa([] { expect_reference_reduce("int8+ef", kNearest); });
}

TEST(Int8, AnOverflowPoisonsItsOwnBlockOnly) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    CodecHarness harness("int8", {3 * Int8Layout::kBlock});
    std::vector<float> gradient(3 * Int8Layout::kBlock, 1.0f);
    gradient[Int8Layout::kBlock + 3] = bad;
    harness.set_gradient(gradient);
    harness.decode({harness.encode()});
    const std::vector<float> decoded = harness.output();
    for (std::size_t i = 0; i < decoded.size(); ++i)
      ASSERT_EQ(std::isnan(decoded[i]), i / Int8Layout::kBlock == 1) << i;
    EXPECT_EQ(decoded.back(), 1.0f) << bad;
  }
}

TEST(Int8, APoisonedBlockKeepsItsResidual) {
  CodecHarness harness("int8+ef", {2 * Int8Layout::kBlock});
  std::vector<float> gradient = harness.gradient();
  gradient[1] = INFINITY;
  harness.set_gradient(gradient);
  const std::vector<float> before = harness.residual_in();
  harness.encode();
  const std::vector<float> after = harness.residual_out();
  for (std::size_t i = 0; i < Int8Layout::kBlock; ++i) ASSERT_EQ(after[i], before[i]) << i;
  EXPECT_NE(after.back(), before.back());
}

TEST(Int8, TinyBlocksWaitInTheResidual) {
  CodecHarness harness("int8+ef", {300}, {.scale = 0x1p-110f});
  harness.decode({harness.encode()});
  EXPECT_EQ(harness.output(), std::vector<float>(300, 0.0f));
  EXPECT_TRUE(same_values(harness.residual_out(), harness.sent()));
}

TEST(Int8, NearestAndResidualAreExact) {
  CodecHarness harness("int8+ef", {100'000});
  harness.set_gradient(difficult_values(100'000, 8));
  harness.decode({harness.encode()});
  const std::vector<float> sent = harness.sent(), decoded = harness.output();
  const std::vector<float> residual = harness.residual_out();
  for (std::size_t i = 0; i < sent.size(); ++i) ASSERT_EQ(decoded[i] + residual[i], sent[i]) << i;
}

TEST(Int8, TheLargestValueOfABlockIsTheLargestCode) {
  CodecHarness harness("int8:rounding=stochastic", {Int8Layout::kBlock});
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    harness.draw(seed);
    const GuardedBytes frame = harness.encode();
    harness.decode({frame});
    float most = 0, scale;
    for (const float value : harness.output()) most = std::max(most, std::fabs(value));
    std::memcpy(&scale, frame.span().data() + sizeof(FrameHeader), sizeof scale);
    ASSERT_EQ(most, 127 * scale) << seed;
  }
}

TEST(Int8, StochasticRoundingIsRightOnAverage) {
  // A step is about 3.5 / 127 of a Gaussian gradient. The mean of 400 draws is off by a twentieth
  // of half a step at most; nearest rounding would be off by a quarter of a step, always.
  const double step = 3.5 / 127;
  EXPECT_LT(mean_error_of_draws("int8:rounding=stochastic", 400), 0.03 * step);
  EXPECT_GT(mean_error_of_draws("int8", 2), 0.15 * step);
}

TEST(Int8, EveryStepKeyAndParameterDrawsOtherNumbers) {
  CodecHarness harness("int8:rounding=stochastic", {3000});
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

TEST(Int8, RoundsAreTwoShotThenGather) {
  const Plan plan = CodecHarness("int8", {1000}).plan();
  ASSERT_EQ(plan.rounds.size(), 1u);
  EXPECT_EQ(plan.rounds[0].exchanges, (std::vector{Exchange::kTwoShot, Exchange::kGather}));
  EXPECT_EQ(plan.frame_bytes, sizeof(FrameHeader) + Int8Layout{1000}.bytes());
}

}  // namespace
}  // namespace tersor::test
