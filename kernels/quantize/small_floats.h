// Floats of four and eight bits (OCP Microscaling Formats 1.0): e4m3, e5m2 and e2m1, and e8m0 for
// scales. Values round to nearest, ties to even. Larger values become the largest finite value.
#pragma once

#include "kernels/quantize/formulas.h"

#include <cstdint>

#if defined(__CUDACC__)
#include "kernels/quantize/rows.cuh"
#endif

namespace tersor::kernels {

/// kDigits: stored bits of the mantissa. kSpecial: the first code of an infinity or a NaN.
struct E4m3 {
  static constexpr unsigned kBits = 8, kDigits = 3, kBias = 7, kSpecial = 0x7f;
  static constexpr float kLargest = 448;
};
struct E5m2 {
  static constexpr unsigned kBits = 8, kDigits = 2, kBias = 15, kSpecial = 0x7c;
  static constexpr float kLargest = 57344;
};
struct E2m1 {
  static constexpr unsigned kBits = 4, kDigits = 1, kBias = 1, kSpecial = 8;
  static constexpr float kLargest = 6;
};

/// The bits of the smallest normal value, as an f32.
template <class Small>
constexpr std::uint32_t kMinNormal = (128 - Small::kBias) << 23;

/// Returns the code of a magnitude, and sets `value` to the code's value. Adding `magic` leaves the
/// digits that the code keeps.
template <class Small>
TERSOR_BODY std::uint32_t small_code(float magnitude, float& value) {
  constexpr unsigned kDroppedBits = 23 - Small::kDigits;
  const float clamped = magnitude < Small::kLargest ? magnitude : Small::kLargest;
  std::uint32_t power = bits_of(clamped) & kInfinityBits;
  power = power > kMinNormal<Small> ? power : kMinNormal<Small>;
  const float magic = float_of(power + (kDroppedBits << 23));
  const float sum = clamped + magic;
  value = sum - magic;
  return ((power - kMinNormal<Small>) >> kDroppedBits) + (bits_of(sum) - bits_of(magic));
}

/// Returns the value of a code. Higher bits of `code` are ignored.
template <class Small>
TERSOR_BODY float small_value(std::uint32_t code) {
  const std::uint32_t sign = (code >> (Small::kBits - 1) & 1u) << 31;
  const std::uint32_t magnitude = code & ((1u << (Small::kBits - 1)) - 1);
  const std::uint32_t bits = (magnitude << (23 - Small::kDigits)) + kMinNormal<Small> - (1u << 23);
  // Subnormal codes: `bits` is half of the smallest normal value, plus half of the code's value.
  const float subnormal = 2.0f * float_of(bits) - float_of(kMinNormal<Small>);
  const float value = magnitude < 1u << Small::kDigits ? subnormal : float_of(bits);
  const std::uint32_t special = magnitude >= Small::kSpecial ? kInfinityBits : 0u;
  return float_of(bits_of(value) | special | sign);
}

/// e8m0: a power of two, or NaN as 255.
struct E8m0Scale {
  using Stored = std::uint8_t;
  using SegmentScale = NoSegmentScale;
  TERSOR_BODY static Stored stored(const BlockScale& block) {
    return static_cast<Stored>(bits_of(block.scale) >> 23);
  }
  TERSOR_BODY static float value(Stored scale, SegmentScale = {}) {
    const std::uint32_t edge = scale == 0 || scale == 255 ? 1u << 22 : 0u;  // 2^-127 or NaN
    return float_of(std::uint32_t{scale} << 23 | edge);
  }
};

#if defined(__CUDACC__)

/// The device code of formats with codes of type Small.
template <class Small>
struct SmallRowCodes {
  template <unsigned kRow>
  using Codes = RowBytes<kRow * Small::kBits / 8>;
  template <unsigned kRow>
  static constexpr unsigned kWords = (sizeof(Codes<kRow>) + 3) / 4;

  template <NoiseKind kKind, unsigned kRow>
  TERSOR_DEVICE static Codes<kRow> code(const float (&p)[kRow], const BlockScale& scale,
                                        const RowNoise<kKind, kRow>&, unsigned,
                                        float (&decoded)[kRow]) {
    static_assert(kKind == NoiseKind::kNone);
    std::uint32_t words[kWords<kRow>] = {};
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i) {
      float value;
      const std::uint32_t code =
          small_code<Small>(float_of(magnitude_bits(p[i] * scale.inverse)), value);
      const std::uint32_t sign = bits_of(p[i]) >> 31;
      words[i * Small::kBits / 32] |= (code | sign << (Small::kBits - 1)) << i * Small::kBits % 32;
      decoded[i] = float_of(bits_of(value) | sign << 31) * scale.scale;
    }
    Codes<kRow> codes;
    std::memcpy(&codes, words, sizeof codes);
    return codes;
  }

  template <unsigned kRow>
  TERSOR_DEVICE static void values(const Codes<kRow>& row, float (&values)[kRow]) {
    std::uint32_t words[kWords<kRow>] = {};
    std::memcpy(words, &row, sizeof row);
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i)
      values[i] = small_value<Small>(words[i * Small::kBits / 32] >> i * Small::kBits % 32);
  }
};

#endif

}  // namespace tersor::kernels
