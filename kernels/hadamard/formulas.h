// hadamard: the formulas for a block, value by value, identical on every device.
//
// Let p be the values to send, and absmax the largest |p|, computed as an integer maximum of bits.
// Let 2^e be the power of two at or below absmax, and T the transform of
// kernels/host/rotation-inl.h:
//   rotated   y = T(±p · 2^-(e + 4)), of about the magnitude of absmax / 2^e
//   scale     s = bf16(2 · mean |y|) for 1-bit codes, else bf16(√(mean y²) · Δ); s · 2^e is sent
//   code      1 bit: set if y's sign bit is 0; else the low bits of clamp(fma(y, 1/s, L − 1/2))
//             + 2^23
//   value     k = code − (L − 1/2); T(k · t) with the block's signs, t = scale · 2^-4
//   residual  p − value
#pragma once

#include "kernels/scalar/convert.h"
#include "kernels/scalar/square_root.h"

#include <tersor/codecs/hadamard.h>

#include <cmath>
#include <cstdint>

namespace tersor::kernels {

constexpr std::uint32_t kHadamardPoisonBits = 0x7b800000u;  // 2^120
constexpr std::uint32_t kHadamardMinBits = 0x0d800000u;     // 2^-100
constexpr float kHadamardMagic = 8388608.0f;                // 2^23

/// The quantizer of a block, by the number of bits per code.
template <unsigned kBits>
struct HadamardSteps {
  static_assert(kBits >= 1 && kBits <= 4);
  /// Codes are numbered from the lowest value; k = code − kMiddle.
  static constexpr float kMaxCode = static_cast<float>((1u << kBits) - 1);
  static constexpr float kMiddle = kMaxCode / 2;
  /// The best uniform step for a normal distribution, in standard deviations.
  static constexpr float kStep = kBits == 1   ? 1.5957691f
                                 : kBits == 2 ? 0.9956867f
                                 : kBits == 3 ? 0.58601943f
                                              : 0.33520061f;
};

/// The magnitude of the values of a block.
struct HadamardRange {
  std::uint32_t absmax_bits;

  /// True if the block decodes to NaN. The block's codes are 0, and its residual is kept.
  TERSOR_BODY bool poisoned() const { return absmax_bits >= kHadamardPoisonBits; }
  /// True if the block's values are too small to send. Scale and codes are 0, and the residual is
  /// p.
  TERSOR_BODY bool underflows() const { return absmax_bits < kHadamardMinBits; }
  TERSOR_BODY bool is_special() const { return poisoned() || underflows(); }
  /// 2^-(e + 4)
  TERSOR_BODY float input_scale() const { return float_of((250u - (absmax_bits >> 23)) << 23); }
  /// The scale sent for a poisoned or underflowing block.
  TERSOR_BODY std::uint16_t special_scale() const { return poisoned() ? 0x7fc0 : 0; }
};

/// The scale of a block: the sent scale, and the inverse used for coding.
struct HadamardScale {
  std::uint16_t sent;  // bf16
  float inverse;       // 1/s; not needed for 1-bit codes
};

/// `sum`: the tree sum of |y| for 1-bit codes, else of y · y.
template <unsigned kBits>
TERSOR_BODY HadamardScale hadamard_scale(const HadamardRange& range, float sum) {
  float s = sum * 0x1p-7f;
  if (kBits != 1) s = square_root(sum * 0x1p-8f) * HadamardSteps<kBits>::kStep;
  const std::uint32_t bits = f32_to_bf16(s);
  const std::uint32_t exponent = range.absmax_bits >> 23;  // 127 + e, from 27 to 246
  return {static_cast<std::uint16_t>(bits + (exponent << 7) - (127u << 7)),
          kBits == 1 ? 0.0f : reciprocal(bf16_to_f32(static_cast<std::uint16_t>(bits)))};
}

/// Returns t, the unit of the values k · t in rotated space.
TERSOR_BODY float hadamard_unit(std::uint16_t scale, float factor) {
  return bf16_to_f32(scale) * factor * 0x1p-4f;
}

}  // namespace tersor::kernels
