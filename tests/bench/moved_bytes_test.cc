// Moved bytes per operation, the number of buffer sets, and narrow values.
#include <gtest/gtest.h>
#include <tersor/codecs/int4.h>
#include <tersor/codecs/int8.h>
#include <tersor/codecs/topk.h>

#include <algorithm>
#include <vector>

#include "bench/common/samples.h"
#include "bench/micro/gpu/gpu_machine.h"
#include "bench/micro/useful_bytes.h"

namespace tersor::bench {
namespace {

TEST(UsefulBytes, FollowFromTheLayouts) {
  constexpr std::size_t kCount = std::size_t{1} << 26, kF32 = 4 * kCount, kBf16 = 2 * kCount;
  const std::size_t int8 = Int8Layout{kCount}.bytes(), int4 = Int4Layout{kCount}.bytes();
  const auto a_value = [](std::size_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(kCount);
  };
  EXPECT_DOUBLE_EQ(a_value(encode_bytes(kF32, int8)), 4 + 1 + 4.0 / 256);
  EXPECT_DOUBLE_EQ(a_value(decode_bytes(kF32, int8)), 4 + 1 + 4.0 / 256);
  EXPECT_DOUBLE_EQ(a_value(encode_bytes(kBf16, int4)), 2 + 0.5 + 4.0 / 128);
  EXPECT_DOUBLE_EQ(a_value(feedback_bytes(kF32, kF32, int8)), 12 + 1 + 4.0 / 256);
  EXPECT_DOUBLE_EQ(a_value(feedback_bytes(kF32, kF32, int4)), 12 + 0.5 + 4.0 / 128);
  EXPECT_DOUBLE_EQ(a_value(reduce_bytes(8, kF32, int8)), 8 + 9 * (1 + 4.0 / 256));
  EXPECT_DOUBLE_EQ(a_value(reduce_bytes(8, kF32, int4)), 8 + 9 * (0.5 + 4.0 / 128));
  EXPECT_DOUBLE_EQ(a_value(decode_add_bytes(kF32, int8)), 8 + 1 + 4.0 / 256);
  const std::size_t selected = topk_selected(kCount, 0.01);
  const std::size_t topk = TopkLayout{kCount, selected, TopkValues::kF32}.bytes();
  EXPECT_EQ(feedback_bytes(kF32, kF32, topk), 12 * kCount + topk);
  EXPECT_NEAR(a_value(topk), 0.06, 1e-3);
}

TEST(UsefulBytes, OnlyTouchedLinesAreCounted) {
  std::vector<std::byte> values(100);
  EXPECT_EQ(touched_bytes(values, 32), 0u);
  values[33] = values[40] = std::byte{1};
  EXPECT_EQ(touched_bytes(values, 32), 32u);
  values[99] = std::byte{1};  // the last line is short
  EXPECT_EQ(touched_bytes(values, 32), 32u + 4u);
}

TEST(Rotation, SetsAreLargerThanTheCache) {
  constexpr std::size_t kCache = 50 << 20;
  for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{5} << 20, kCache, 4 * kCache}) {
    const std::size_t sets = rotation_sets(kCache, bytes);
    EXPECT_GE(sets * bytes, 4 * kCache) << bytes;
    EXPECT_GE(sets, 2u);
  }
  EXPECT_EQ(rotation_sets(kCache, std::size_t{1} << 40), 2u);
  EXPECT_LE(rotation_sets(kCache, 0), 4096u);
}

TEST(Samples, NarrowValuesShareThirteenBits) {
  const SampleSource source("narrow");
  const Buffer drawn = sample_buffer(source, 100'000, Dtype::kF32, 3);
  const auto values = drawn.values(100'000, Dtype::kF32).as<float>();
  const auto [least, most] = std::ranges::minmax(values);
  EXPECT_GE(least, 1.0f);
  EXPECT_LT(most, 1.0f + 0x1p-10f);
  EXPECT_GT(most - least, 0x1p-11f);
}

}  // namespace
}  // namespace tersor::bench
