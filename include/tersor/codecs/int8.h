/// int8: eight-bit quantisation, one f32 scale for every 256 values (QSGD, Alistarh et al. 2017,
/// with absmax scaling).
///
/// Payload  scales  f32[ceil(count / 256)], padded to 16 bytes
///          codes   i8[count], padded to 16 bytes; in [-127, 127], -128 is never written
/// Value    scale * code, where scale = absmax * fl(1/127) of the block, 0 below 2^-100
/// Error    at most scale / 2 a value (nearest); scale a value, bias at most scale / 512
///          (stochastic); 2^-100 * 127 in a block whose scale is 0
/// A block that holds a NaN or an infinity decodes to NaN: an overflow is never hidden.
#pragma once

#include <tersor/codecs/scaled_codes.h>
#include <tersor/modes.h>

#include <cstdint>

namespace tersor {

inline constexpr std::uint16_t kInt8CodecId = 4;

/// Options of the spec: int8[:rounding=nearest|stochastic].
struct Int8Options {
  Rounding rounding = Rounding::kNearest;
};

/// Where the sections of one segment's int8 payload lie.
using Int8Layout = ScaledCodes<256, 8>;
static_assert(Int8Layout{1024}.bytes() == 16 + 1024);
static_assert(Int8Layout{257}.codes_offset() == 16 && Int8Layout{257}.bytes() == 16 + 272);
static_assert(Int8Layout{0}.bytes() == 0);

}  // namespace tersor
