// Blockwise quantisation with absmax scaling (QSGD, Alistarh et al. 2017): the formulas for a
// single value. Let p be the value to send, and absmax the largest |p| of a block, computed as an
// integer maximum of bits.
//   Scale:       q = absmax · fl(1/L). A block with a NaN or an infinity is poisoned, and a q below
//                2^-100 counts as 0.
//   Code:        Computed from p/q by each format.
//   Residual:    p - d, where d = value(code) · q, rounded once.
//
// Formats with integer codes (int8, int4) share the rounding:
//   Nearest:     The code is the low bits of fma(p, 1/q, 1.5·2^23). d + residual = p exactly.
//   Stochastic:  The low 16 bits of fma(p, 1/q, 1.5·2^15) are p/q in steps of 1/256. A random byte
//                is added, and the code is the result without the lowest byte.
//
// A format is a header included by formats.h. Every format must define all of these parts:
//   NAMEFormat                 Name, summary, ID, layout, and L as kLevels, or a Scale and the rule
//                              block_scale.
//   RowCodes<NAMEFormat>       Device code. See kernels/quantize/rows.cuh.
//   VectorCodes<NAMEFormat>    Host code, if TERSOR_VECTORS is defined, once per instruction set.
//                              See kernels/quantize/vectors-inl.h.
//   TERSOR_QUANTIZE_FORMAT(NAMEFormat)    If this macro is defined: registers the format.
#pragma once

#include "kernels/scalar/bits.h"

#include <cstddef>
#include <type_traits>

namespace tersor::kernels {

constexpr float kNearestMagic = 12582912.0f;            // 1.5 · 2^23
constexpr std::uint32_t kNearestBits = 0x4b400000u;     // bits of kNearestMagic
constexpr float kStochasticMagic = 49152.0f;            // 1.5 · 2^15
constexpr std::uint32_t kStochasticBits = 0x47400000u;  // bits of kStochasticMagic
constexpr float kMinScale = 0x1p-100f;

/// The scale of a block. If `poisoned` is true, all codes are 0 and the residual is kept. A scale
/// of 0 has the inverse 0. The formulas below then give code 0 and residual p.
struct BlockScale {
  float scale;
  float inverse;
  bool poisoned;
  std::uint32_t code = 0;  // the stored scale, if `scale` has a second factor
};

/// How a payload stores scales: as f32, unless a format has another Scale. SegmentScale is a number
/// of the segment that all scales share, computed from the segment's largest magnitude.
struct NoSegmentScale {
  TERSOR_BODY static NoSegmentScale of(float) { return {}; }
};
struct F32Scale {
  using Stored = float;
  using SegmentScale = NoSegmentScale;
  TERSOR_BODY static Stored stored(const BlockScale& block) { return block.scale; }
  TERSOR_BODY static float value(Stored scale, SegmentScale) { return scale; }
};

/// The base class of a format.
template <class PayloadLayout>
struct QuantizeFormat {
  using Layout = PayloadLayout;
  using Scale = F32Scale;
  static constexpr std::size_t kBlock = Layout::kBlock;  // values per scale
  static constexpr unsigned kBits = Layout::kBits;       // bits per code
  static constexpr bool kClamps = false;                 // True if p is clamped before coding
  static constexpr bool kStochastic = true;              // True if the codec has both roundings
  static constexpr float kZero = 0.0f;                   // the start of a reduction's sum
};

/// True if a segment begins with the largest magnitude of its finite values. Kernels that encode
/// then read the values twice.
template <class Format>
constexpr bool kHasSegmentScale =
    !std::is_same_v<typename Format::Scale::SegmentScale, NoSegmentScale>;

/// Returns the scale of a block. A format may define its own rule as Format::block_scale.
/// `segment_scale` belongs to the segment.
template <typename Format>
TERSOR_BODY BlockScale block_scale(std::uint32_t absmax_bits,
                                   [[maybe_unused]]
                                   typename Format::Scale::SegmentScale segment_scale = {}) {
  if (absmax_bits >= kInfinityBits) return {float_of(kNanBits), 0.0f, true};
  if constexpr (requires { Format::block_scale(absmax_bits, segment_scale); }) {
    return Format::block_scale(absmax_bits, segment_scale);
  } else {
    const float q = float_of(absmax_bits) * (1.0f / Format::kLevels);
    if (q < kMinScale) return {0.0f, 0.0f, false};
    return {q, reciprocal(q), false};
  }
}

/// Returns the sum t, from which nearest_code and nearest_value read the code and the value of p.
TERSOR_BODY float nearest_sum(float p, float inverse) {
  return fused_multiply_add(p, inverse, kNearestMagic);
}
TERSOR_BODY std::int32_t nearest_code(float sum) {
  return static_cast<std::int32_t>(bits_of(sum) - kNearestBits);
}
TERSOR_BODY float nearest_value(float sum, float scale) { return (sum - kNearestMagic) * scale; }

/// Returns the code of p for a random byte `noise`.
TERSOR_BODY std::int32_t stochastic_code(float p, float inverse, std::uint32_t noise) {
  const std::uint32_t bits = bits_of(fused_multiply_add(p, inverse, kStochasticMagic));
  return static_cast<std::int32_t>(bits - kStochasticBits + noise) >> 8;
}

/// Returns the decoded value of a code.
TERSOR_BODY float code_value(std::int32_t code, float scale) {
  return static_cast<float>(code) * scale;
}

}  // namespace tersor::kernels
