/// int8: eight-bit quantisation with an f32 scale per 256 values (QSGD, Alistarh et al. 2017, with
/// absmax scaling).
///
/// Payload  scales  f32[ceil(count / 256)], padded to 16 bytes
///          codes   i8[count], padded to 16 bytes; in [-127, 127].
/// Value    scale * code, with scale = absmax * fl(1/127) of the block, or 0 below 2^-100.
/// Error    Nearest: at most scale / 2 per value.
///          Stochastic: at most scale per value, with a bias of at most scale / 512.
///          A block with scale 0: at most 2^-100 * 127 per value.
///
/// A block with a NaN or an infinity decodes to NaN. Overflows are therefore never hidden.
#pragma once

#include <tersor/codecs/scaled_codes.h>
#include <tersor/modes.h>

#include <cstdint>

namespace tersor {

/// The codec's number in the wire format.
inline constexpr std::uint16_t kInt8CodecId = 4;

/// Options of the spec int8[:rounding=nearest|stochastic].
struct Int8Options {
  Rounding rounding = Rounding::kNearest;  ///< rounding to a code
};

/// The section offsets of a segment's int8 payload, in bytes.
using Int8Layout = ScaledCodes<256, 8>;
static_assert(Int8Layout{1024}.bytes() == 16 + 1024);
static_assert(Int8Layout{257}.codes_offset() == 16 && Int8Layout{257}.bytes() == 16 + 272);
static_assert(Int8Layout{0}.bytes() == 0);

}  // namespace tersor
