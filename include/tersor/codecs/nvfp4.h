/// nvfp4: floats of four bits, a float of eight bits per 16 values, and an f32 per segment (NVFP4).
/// The sections are the tensors of torchao's `nvfp4_quantize` with the per-tensor scale of
/// `per_tensor_amax_to_scale`, in the unswizzled layout.
///
/// Payload  largest  f32, the largest finite magnitude of the segment, padded to 16 bytes;
///                   the scale of the segment is largest / 2688
///          scales   e4m3[ceil(count / 16)], padded to 16 bytes; 0x7f is NaN
///          codes    e2m1[count], the even index in the low half of a byte, padded to 16 bytes.
///                   After an odd count, the last high half is 0.
/// Value    code * (largest / 2688 * scale). Codes are 0, 0.5, 1, 1.5, 2, 3, 4 and 6, with a sign.
/// Error    at most 0.18 of the block's largest value, or 2^-16 of `largest` in blocks whose
///          largest value is below 2^-14 of `largest`. All values if `largest` is below
///          2^-100 * 2688.
///
/// A segment is not cut into chunks, because its values share `largest`. In two-shot, each part of
/// an owner is a segment. A block with a NaN or an infinity gets scale 0x7f and codes 0, and
/// decodes to NaN; the other blocks do not change. torchao spoils the whole tensor instead, and
/// also for a tensor of zeros.
#pragma once

#include <tersor/codecs/scaled_codes.h>

#include <cstdint>

namespace tersor {

/// The codec's number in the wire format.
inline constexpr std::uint16_t kNvfp4CodecId = 13;

/// The section offsets of a segment's nvfp4 payload, in bytes.
using Nvfp4Layout = ScaledCodes<16, 4, std::uint8_t, sizeof(float)>;
static_assert(Nvfp4Layout{1024}.bytes() == 16 + 64 + 512);
static_assert(Nvfp4Layout{17}.scales_offset() == 16 && Nvfp4Layout{17}.codes_offset() == 32);
static_assert(Nvfp4Layout{0}.bytes() == 0);

}  // namespace tersor
