/// int4: four-bit quantisation with an f32 scale per 128 values (QSGD, Alistarh et al. 2017, with
/// absmax scaling).
///
/// Payload  scales  f32[ceil(count / 128)], padded to 16 bytes
///          codes   two's-complement nibbles [count], the even index low, padded to 16 bytes.
///                  After an odd count, the last high nibble is 0. Codes are in [-7, 7].
/// Value    scale * code, with scale = absmax * fl(1/7) of the block, or 0 below 2^-100.
/// Error    Nearest: at most scale / 2 per value.
///          Stochastic: at most scale per value, with a bias of at most scale / 512.
///          A block with scale 0: at most 2^-100 * 7 per value.
///
/// A block with a NaN or an infinity decodes to NaN. Overflows are therefore never hidden.
#pragma once

#include <tersor/codecs/scaled_codes.h>
#include <tersor/modes.h>

#include <cstdint>

namespace tersor {

/// The codec's number in the wire format.
inline constexpr std::uint16_t kInt4CodecId = 5;

/// Options of the spec int4[:rounding=nearest|stochastic].
struct Int4Options {
  Rounding rounding = Rounding::kNearest;  ///< rounding to a code
};

/// The section offsets of a segment's int4 payload, in bytes.
using Int4Layout = ScaledCodes<128, 4>;
static_assert(Int4Layout{1024}.bytes() == 32 + 512);
static_assert(Int4Layout{257}.codes_offset() == 16 && Int4Layout{257}.codes_bytes() == 129);
static_assert(Int4Layout{0}.bytes() == 0);

}  // namespace tersor
