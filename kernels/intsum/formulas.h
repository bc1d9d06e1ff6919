// intsum: shared scales, and codes to them in lanes of 8, 16 or 32 bits. How p becomes a code and a
// residual stands in kernels/quantize/formulas.h.
//
// With A the maximum over ranks of fl(a · f), a the own largest |p| and f the factor, codes are
// made with q' = fl(q / f), q = fl(A / L): |p · fl(1 / q')| ≤ L · (1 + 2^-22 and a little), from
// four roundings. With L < 2^20 that is within 1/4 of L, and 256 times it (L < 2^13) within 1/2 of
// 256 · L: no code leaves [-L, L].
#pragma once

#include "kernels/quantize/formulas.h"
#include "kernels/quantize/int8.h"

#include <tersor/codecs/intsum.h>

#include <cstddef>

namespace tersor::kernels {

constexpr std::size_t kIntsumBlock = IntsumLayout::kBlock;

/// What a block's bare maximum is, from the largest magnitude of p as bits.
TERSOR_BODY std::uint32_t sent_maximum(std::uint32_t absmax_bits, float factor) {
  return absmax_bits > kInfinityBits ? kNanBits : bits_of(float_of(absmax_bits) * factor);
}

/// The scale of all ranks' codes, from the largest of their maxima.
TERSOR_BODY float shared_scale(std::uint32_t maximum, float levels) {
  if (maximum >= kInfinityBits) return float_of(kNanBits);
  const float scale = quotient(float_of(maximum), levels);
  return scale < kSmallestScale ? 0.0f : scale;
}

/// Of a block whose scale is the spec's, from the largest magnitude of p as bits: whether it holds
/// what is not finite; from how many ranks' blocks do: its scale.
TERSOR_BODY bool is_flagged(std::uint32_t absmax_bits) { return absmax_bits >= kInfinityBits; }
TERSOR_BODY float known_scale(bool is_flagged, float scale) {
  return is_flagged ? float_of(kNanBits) : scale;
}

/// What this rank's p are quantised with. A scale that leaves the range of f32 on the way sends
/// nothing: p stays in the residual. p is cut to `levels` times the scale, either way, which
/// changes nothing where that is of the ranks' maximum.
TERSOR_BODY BlockScale own_scale(float scale, float factor) {
  if (!is_finite(scale)) return {scale, 0.0f, true};
  const float own = quotient(scale, factor);
  if (!is_finite(own) || own < kSmallestScale) return {0.0f, 0.0f, false};
  return {own, reciprocal(own), false};
}

/// Formats of codes; lanes of 8 bits are the bytes of int8. `kBits`: of a code, as it travels.
struct IntsumFormat {
  static constexpr std::size_t kBlock = kIntsumBlock;
  static constexpr bool kCuts = true;
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

/// Added to a word of two codes, this leaves each with an offset of 2^15 in a half of its own.
constexpr std::uint32_t kPairOffset = 0x80008000u;

}  // namespace tersor::kernels
