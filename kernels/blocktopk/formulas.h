// blocktopk: the formulas for a block, value by value, identical on every device. No loops.
//
// Let p be the values to send. Top-k selects the k largest keys (bits without sign). The lowest
// index wins a tie, and zeros are never selected. Let m ≤ k be the number of selected values.
//   scale     sign: (tree sum of the selected |p| in order of index) · fl(1/m); int4: the block's
//             absmax · fl(1/7); a scale below 2^-100 becomes 0
//   code      sign: p's sign bit; int4: as in codec int4; bf16: the rounded value
//   residual  p − decoded value if the value is sent, else p
#pragma once

#include "kernels/quantize/int4.h"
#include "kernels/scalar/convert.h"

#include <tersor/codecs/blocktopk.h>

#include <cstdint>

namespace tersor::kernels {

/// The smallest key that poisons its block, 2^118. The sum of 1,024 smaller values does not
/// overflow, no smaller value rounds to infinity, and no infinity stays in a residual.
constexpr std::uint32_t kBlocktopkPoisonBits = 0x7a800000u;

/// The scale and its inverse. Both are 0 for value types without a scale.
struct BlocktopkScale {
  float scale = 0;
  float inverse = 0;  // int4 only
};

/// Returns the mean of `selected` magnitudes. `selected` must be at least 1.
TERSOR_BODY BlocktopkScale blocktopk_sign_scale(float sum, std::uint32_t selected) {
  const float mean = sum * reciprocal(static_cast<float>(selected));
  return {mean < kMinScale ? 0.0f : mean, 0.0f};
}

TERSOR_BODY BlocktopkScale blocktopk_int4_scale(std::uint32_t absmax_bits) {
  const BlockScale scale = block_scale<Int4Format>(absmax_bits);
  return {scale.scale, scale.inverse};
}

/// Convert between a selected value and its sent code, for each value type.
template <BlocktopkValues kValues>
TERSOR_BODY std::uint32_t blocktopk_code(float p, const BlocktopkScale& scale) {
  if constexpr (kValues == BlocktopkValues::kSign)
    return bits_of(p) >> 31;
  else if constexpr (kValues == BlocktopkValues::kInt4)
    return static_cast<std::uint32_t>(nearest_code(nearest_sum(p, scale.inverse))) & 15u;
  else
    return f32_to_bf16(p);
}

template <BlocktopkValues kValues>
TERSOR_BODY float blocktopk_value(std::uint32_t code, float scale) {
  if constexpr (kValues == BlocktopkValues::kSign)
    return float_of(bits_of(scale) ^ code << 31);
  else if constexpr (kValues == BlocktopkValues::kInt4)
    return code_value(static_cast<std::int32_t>(code ^ 8u) - 8, scale);
  else
    return bf16_to_f32(static_cast<std::uint16_t>(code));
}

/// Returns the code at the first indices of a poisoned block. The block's scale is a NaN.
template <BlocktopkValues kValues>
TERSOR_BODY std::uint32_t blocktopk_poison_code() {
  return kValues == BlocktopkValues::kBf16 ? kNarrowNanBits : 0;
}

}  // namespace tersor::kernels
