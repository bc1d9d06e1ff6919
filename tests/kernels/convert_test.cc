// Conversions between f32 and bf16 or f16, value by value: exhaustive for the narrow types, and
// around every boundary for f32.

#include "kernels/scalar/convert.h"
#include "tests/kernels/reference.h"

#include <gtest/gtest.h>

namespace tersor::kernels {
namespace {

bool same(float a, float b) { return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b)); }

TEST(Convert, WidensEveryNarrowValue) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto narrow = static_cast<std::uint16_t>(bits);
    ASSERT_TRUE(same(bf16_to_f32(narrow), reference::widen(narrow, reference::kBf16))) << bits;
    ASSERT_TRUE(same(f16_to_f32(narrow), reference::widen(narrow, reference::kF16))) << bits;
  }
}

void expect_rounded(std::uint32_t bits) {
  const float value = float_of(bits);
  ASSERT_EQ(f32_to_bf16(value), reference::narrow(value, reference::kBf16)) << std::hex << bits;
  ASSERT_EQ(f32_to_f16(value), reference::narrow(value, reference::kF16)) << std::hex << bits;
}

TEST(Convert, RoundsToNearestEvenAcrossTheRange) {
  for (std::uint64_t bits = 0; bits < 1ull << 32; bits += 4093)
    ASSERT_NO_FATAL_FAILURE(expect_rounded(static_cast<std::uint32_t>(bits)));
}

TEST(Convert, RoundsToNearestEvenAroundEveryTie) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits)
    for (const std::uint32_t half : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      ASSERT_NO_FATAL_FAILURE(expect_rounded(bits << 16 | half));
  for (std::uint32_t code = 0; code < 0x7c00; ++code) {  // midway between two f16
    const float low = f16_to_f32(static_cast<std::uint16_t>(code));
    const float high =
        code + 1 == 0x7c00 ? 65536.0f : f16_to_f32(static_cast<std::uint16_t>(code + 1));
    for (const int step : {-1, 0, 1})
      ASSERT_NO_FATAL_FAILURE(
          expect_rounded(bits_of((low + high) / 2) + static_cast<std::uint32_t>(step)));
  }
}

TEST(Convert, NansBecomeCanonicalNan) {
  for (const std::uint32_t bits :
       {0x7f800001u, 0x7fc00000u, 0xffc00000u, 0xff800001u, 0x7fffffffu}) {
    EXPECT_EQ(f32_to_bf16(float_of(bits)), 0x7fff);
    EXPECT_EQ(f32_to_f16(float_of(bits)), 0x7fff);
  }
}

}  // namespace
}  // namespace tersor::kernels
