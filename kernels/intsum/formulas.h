// intsum: shared scales, and integer codes of these scales in 8-bit, 16-bit or 32-bit accumulators.
// The coding of p and the residual are defined in kernels/quantize/formulas.h.
//
// Let f be the factor, a the rank's largest |p|, and A the maximum over ranks of fl(a · f). Codes
// use q' = fl(q / f) with q = fl(A / L). Four roundings give |p · fl(1 / q')| ≤ L · (1 + 2^-22 and
// a little). If L < 2^20, the bound is within 1/4 of L. If L < 2^13, 256 times the bound is within
// 1/2 of 256 · L. Therefore no code leaves [-L, L].
#pragma once

#include "kernels/quantize/formulas.h"
#include "kernels/quantize/int8.h"

#include <tersor/codecs/intsum.h>

#include <cstddef>

namespace tersor::kernels {

constexpr std::size_t kIntsumBlock = IntsumLayout::kBlock;

/// Returns a block's raw maximum, from the largest magnitude of p as bits.
TERSOR_BODY std::uint32_t sent_maximum(std::uint32_t absmax_bits, float factor) {
  return absmax_bits > kInfinityBits ? kNanBits : bits_of(float_of(absmax_bits) * factor);
}

/// Returns the scale of all ranks' codes, from the largest of the ranks' maxima.
TERSOR_BODY float shared_scale(std::uint32_t maximum, float levels) {
  if (maximum >= kInfinityBits) return float_of(kNanBits);
  const float scale = quotient(float_of(maximum), levels);
  return scale < kMinScale ? 0.0f : scale;
}

/// Two functions for blocks whose scale is given in the spec. The function is_flagged returns true
/// if the block contains a non-finite value, given the block's largest magnitude. The function
/// fixed_scale returns the block's scale: NaN if any rank flagged the block.
TERSOR_BODY bool is_flagged(std::uint32_t absmax_bits) { return absmax_bits >= kInfinityBits; }
TERSOR_BODY float fixed_scale(bool is_flagged, float scale) {
  return is_flagged ? float_of(kNanBits) : scale;
}

/// Returns the scale for this rank's p. If the scale leaves the range of f32 during the
/// computation, nothing is sent, and p stays in the residual. The encoder always clamps p to
/// `levels` times the scale. The clamp changes nothing if the scale is derived from the ranks'
/// maximum.
TERSOR_BODY BlockScale own_scale(float scale, float factor) {
  if (!is_finite(scale)) return {scale, 0.0f, true};
  const float own = quotient(scale, factor);
  if (!is_finite(own) || own < kMinScale) return {0.0f, 0.0f, false};
  return {own, reciprocal(own), false};
}

/// Code formats. 8-bit codes are the bytes of int8. `kBits` is the size of a sent code.
struct IntsumFormat {
  using Scale = F32Scale;
  static constexpr std::size_t kBlock = kIntsumBlock;
  static constexpr bool kClamps = true;
  static constexpr bool kStochastic = true;
};
struct IntsumBytes : IntsumFormat {
  static constexpr unsigned kBits = 8;
};
struct IntsumPairs : IntsumFormat {
  static constexpr unsigned kBits = 16;
};
struct IntsumWords : IntsumFormat {
  static constexpr unsigned kBits = 32;
};
static_assert(Int8Format::kBlock == kIntsumBlock);

/// Adding this constant to a word of two codes gives each code an offset of 2^15 in its own half.
constexpr std::uint32_t kPairOffset = 0x80008000u;

}  // namespace tersor::kernels
