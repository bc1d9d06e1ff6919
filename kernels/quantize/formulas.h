// Blockwise quantisation with absmax scaling (QSGD, Alistarh et al. 2017), one value at a time.
// With p the value to send and absmax the largest |p| of a block, as an integer maximum of bits:
//   scale        q = absmax · fl(1/L); a block with a NaN or an infinity is poisoned, and a q below
//                2^-100 counts as 0
//   code         what a format makes of p/q
//   residual     p - d, where d = value(code) · q, rounded once
//
// Formats whose codes are whole numbers (int8, int4) share how they make them:
//   nearest      the code is the low bits of fma(p, 1/q, 1.5·2^23); d + residual = p exactly
//   stochastic   the low 16 bits of fma(p, 1/q, 1.5·2^15) are p/q in steps of 1/256; a random byte
//                is added to them, and the code is what lies above the lowest byte then
//
// A format is a header that formats.h includes. Its parts, of which none can be left out:
//   NAMEFormat                 name, summary, id, layout, and L as kLevels
//   RowCodes<NAMEFormat>       for devices (kernels/quantize/rows.cuh says of what)
//   VectorCodes<NAMEFormat>    for hosts, once for each instruction set, where TERSOR_VECTORS is
//                              defined (kernels/quantize/vectors-inl.h)
//   TERSOR_QUANTIZE_FORMAT(NAMEFormat)    where that is defined: the format's place in the list
#pragma once

#include "kernels/scalar/bits.h"

#include <cstddef>

namespace tersor::kernels {

constexpr float kNearestMagic = 12582912.0f;            // 1.5 · 2^23
constexpr std::uint32_t kNearestBits = 0x4b400000u;     // its bits
constexpr float kStochasticMagic = 49152.0f;            // 1.5 · 2^15
constexpr std::uint32_t kStochasticBits = 0x47400000u;  // its bits
constexpr float kSmallestScale = 0x1p-100f;

/// What a format's struct begins with.
template <class PayloadLayout>
struct QuantizeFormat {
  using Layout = PayloadLayout;
  static constexpr std::size_t kBlock = Layout::kBlock;  // values that share a scale
  static constexpr unsigned kBits = Layout::kBits;       // of a code
  static constexpr bool kCuts = false;                   // p, before it is coded
};

/// What a block is quantised with. Where `poisoned`, all codes are 0 and the residual stays.
/// A scale of 0 has the inverse 0: the formulas below then give code 0, and residual p.
struct BlockScale {
  float scale;
  float inverse;
  bool poisoned;
};

template <typename Format>
TERSOR_BODY BlockScale block_scale(std::uint32_t absmax_bits) {
  if (absmax_bits >= kInfinityBits) return {float_of(kNanBits), 0.0f, true};
  const float q = float_of(absmax_bits) * (1.0f / Format::kLevels);
  if (q < kSmallestScale) return {0.0f, 0.0f, false};
  return {q, reciprocal(q), false};
}

/// t of p, from which the nearest code and its value are read.
TERSOR_BODY float nearest_sum(float p, float inverse) {
  return fused_multiply_add(p, inverse, kNearestMagic);
}
TERSOR_BODY std::int32_t nearest_code(float sum) {
  return static_cast<std::int32_t>(bits_of(sum) - kNearestBits);
}
TERSOR_BODY float nearest_value(float sum, float scale) { return (sum - kNearestMagic) * scale; }

/// The code of p, with a random byte.
TERSOR_BODY std::int32_t stochastic_code(float p, float inverse, std::uint32_t noise) {
  const std::uint32_t bits = bits_of(fused_multiply_add(p, inverse, kStochasticMagic));
  return static_cast<std::int32_t>(bits - kStochasticBits + noise) >> 8;
}

/// What a code decodes to.
TERSOR_BODY float code_value(std::int32_t code, float scale) {
  return static_cast<float>(code) * scale;
}

}  // namespace tersor::kernels
