/// mxfp8: floats of eight bits with a power of two per 32 values (OCP Microscaling Formats 1.0,
/// MXFP8). The payload's sections are the tensors of torchao's `to_mx` with its default scaling
/// mode, FLOOR, in the unswizzled layout.
///
/// Payload  scales  e8m0[ceil(count / 32)], padded to 16 bytes; 2^(byte - 127), 255 is NaN
///          codes   e4m3[count] or e5m2[count], padded to 16 bytes
/// Value    scale * code, with scale = 2^(floor(log2(absmax)) - 8), for e5m2 2^(… - 15), at least
///          2^-127.
/// Error    e4m3: at most 1/16 of a value, 1/8 of a value above 448 * scale (which becomes 448 *
///          scale), and 2^-10 * scale of a value below 2^-6 * scale.
///          e5m2: at most 1/8 of a value, and 2^-17 * scale of a value below 2^-14 * scale. Values
///          above 57344 * scale become 57344 * scale.
///          A block with absmax below 2^-118 (e5m2: 2^-111) has scale 2^-127, but codes for 2^-126,
///          as in torchao. Half of each value is lost.
///
/// A block with a NaN or an infinity gets scale 255 and codes 0, and decodes to NaN. Overflows are
/// therefore never hidden. torchao instead turns an infinity into the largest code, and writes NaN
/// codes for NaNs.
#pragma once

#include <tersor/codecs/scaled_codes.h>

#include <cstdint>

namespace tersor {

/// The codec's number in the wire format.
inline constexpr std::uint16_t kMxfp8CodecId = 12;

/// The codes' type. The number is the codec flag in a frame's header.
enum class Mxfp8Elements : std::uint8_t { kE4m3 = 0, kE5m2 = 1 };

/// Options of the spec mxfp8[:elements=e4m3|e5m2].
struct Mxfp8Options {
  Mxfp8Elements elements = Mxfp8Elements::kE4m3;  ///< type of the codes
};

/// The section offsets of a segment's mxfp8 payload, in bytes.
using Mxfp8Layout = ScaledCodes<32, 8, std::uint8_t>;
static_assert(Mxfp8Layout{1024}.bytes() == 32 + 1024);
static_assert(Mxfp8Layout{33}.codes_offset() == 16 && Mxfp8Layout{33}.bytes() == 16 + 48);
static_assert(Mxfp8Layout{0}.bytes() == 0);

}  // namespace tersor
