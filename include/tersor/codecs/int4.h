/// int4: four-bit quantisation, one f32 scale for every 128 values (QSGD, Alistarh et al. 2017,
/// with absmax scaling).
///
/// Payload  scales  f32[ceil(count / 128)], padded to 16 bytes
///          codes   two's-complement nibbles [count], the even index in the low one, an odd count's
///                  last high one 0, padded to 16 bytes; in [-7, 7], -8 is never written
/// Value    scale * code, where scale = absmax * fl(1/7) of the block, 0 below 2^-100
/// Error    at most scale / 2 a value (nearest); scale a value, bias at most scale / 512
///          (stochastic); 2^-100 * 7 in a block whose scale is 0
/// A block that holds a NaN or an infinity decodes to NaN: an overflow is never hidden.
#pragma once

#include <tersor/codecs/scaled_codes.h>
#include <tersor/modes.h>

#include <cstdint>

namespace tersor {

inline constexpr std::uint16_t kInt4CodecId = 5;

/// Options of the spec: int4[:rounding=nearest|stochastic].
struct Int4Options {
  Rounding rounding = Rounding::kNearest;
};

/// Where the sections of one segment's int4 payload lie.
using Int4Layout = ScaledCodes<128, 4>;
static_assert(Int4Layout{1024}.bytes() == 32 + 512);
static_assert(Int4Layout{257}.codes_offset() == 16 && Int4Layout{257}.codes_bytes() == 129);
static_assert(Int4Layout{0}.bytes() == 0);

}  // namespace tersor
