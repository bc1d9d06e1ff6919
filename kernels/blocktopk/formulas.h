// blocktopk: what every device computes of a block, one value at a time. No loops.
//
// With p the values to send, chosen are the k largest keys (bits without sign), ties to the lowest
// place, zeros never; m ≤ k are kept.
//   scale     sign: (the tree sum of the |p| kept, in the order of their places) · fl(1/m); int4:
//             the block's absmax · fl(1/7); below 2^-100 it is 0
//   code      sign: whether p's sign bit is 1; int4: as the codec int4; bf16: the rounded value
//   residual  p − value of what is sent, else p
#pragma once

#include "kernels/quantize/int4.h"
#include "kernels/scalar/convert.h"

#include <tersor/codecs/blocktopk.h>

#include <cstdint>

namespace tersor::kernels {

/// A key from here poisons its block: of 1,024 values below 2^118 no sum overflows, none rounds to
/// an infinity, and so none stays in a residual.
constexpr std::uint32_t kBlocktopkPoisonBits = 0x7a800000u;

/// The scale and its inverse; of values that have none 0.
struct BlocktopkScale {
  float scale = 0;
  float inverse = 0;  // int4 only
};

/// The mean of `kept` magnitudes, at least one.
TERSOR_BODY BlocktopkScale blocktopk_sign_scale(float sum, std::uint32_t kept) {
  const float mean = sum * reciprocal(static_cast<float>(kept));
  return {mean < kSmallestScale ? 0.0f : mean, 0.0f};
}

TERSOR_BODY BlocktopkScale blocktopk_int4_scale(std::uint32_t absmax_bits) {
  const BlockScale scale = block_scale<Int4Format>(absmax_bits);
  return {scale.scale, scale.inverse};
}

/// How a kept value travels: code and value, by the type of the values.
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

/// What a poisoned block sends at its first places: its scale is a NaN.
template <BlocktopkValues kValues>
TERSOR_BODY std::uint32_t blocktopk_poison_code() {
  return kValues == BlocktopkValues::kBf16 ? kNarrowNanBits : 0;
}

}  // namespace tersor::kernels
