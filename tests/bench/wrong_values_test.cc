// The device benchmark's check of sums, applied to sums of the CPU.
#include "bench/allreduce/rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace tersor::bench {
namespace {

constexpr std::size_t kCount = 10'007;
constexpr int kRanks = 3;

std::span<float> floats(const Buffer& buffer) {
  return buffer.values(kCount, Dtype::kF32).as<float>();
}

TEST(WrongValues, HostSumIsWithinRoundingBounds) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    const RankGradients gradients(kCount, dtype, kRanks);
    const Buffer sum =
        reduced_on_host(gradients, {.codec = "none", .algorithm = Algorithm::kNative});
    EXPECT_EQ(count_outside(gradients, dtype, sum.values(kCount, dtype)), 0u);
  }
}

TEST(WrongValues, Bf16SumExceedsF32RoundingBounds) {
  const RankGradients gradients(kCount, Dtype::kF32, kRanks);
  const Buffer sum = reduced_on_host(gradients, {.codec = "bf16", .algorithm = Algorithm::kNative});
  const ValueSpan values = sum.values(kCount, Dtype::kF32);
  EXPECT_EQ(count_outside(gradients, Dtype::kBf16, values), 0u);
  EXPECT_GT(count_outside(gradients, Dtype::kF32, values), kCount / 2);
}

TEST(WrongValues, CountsWrongValuesAndNans) {
  const RankGradients gradients(kCount, Dtype::kF32, kRanks);
  const Buffer sum = reduced_on_host(gradients, {.codec = "none", .algorithm = Algorithm::kNative});
  floats(sum)[0] += 1;
  floats(sum)[kCount - 1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(count_outside(gradients, Dtype::kF32, sum.values(kCount, Dtype::kF32)), 2u);
}

TEST(WrongValues, DetectsOneUlpDifference) {
  const RankGradients gradients(kCount, Dtype::kF32, kRanks);
  const CollectiveCase config{.codec = "int8", .algorithm = Algorithm::kTwoShot};
  const Buffer expected = reduced_on_host(gradients, config);
  const Buffer actual = reduced_on_host(gradients, config);
  const auto wrong = [&] {
    return count_different(expected.values(kCount, Dtype::kF32),
                           actual.values(kCount, Dtype::kF32));
  };
  EXPECT_EQ(wrong(), 0u);
  floats(actual)[17] = std::nextafter(floats(actual)[17], 2.0f);
  EXPECT_EQ(wrong(), 1u);
}

}  // namespace
}  // namespace tersor::bench
