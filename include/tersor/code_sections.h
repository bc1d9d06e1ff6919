/// The codes and scales of a frame as they are, for programs that compute with codes instead of
/// decoded values, e.g. a matrix product of MXFP8 operands.
#pragma once

#include <tersor/codec.h>

#include <cstddef>
#include <span>
#include <vector>

namespace tersor {

/// The sections of one segment, in bytes from the start of the frame, without padding. Codes and
/// scales are in the order of the values, so in the unswizzled layout. In torch's dtypes:
///
///   mxfp8  codes   float8_e4m3fn or float8_e5m2 [count]
///          scales  float8_e8m0fnu [ceil(count / 32)]
///   nvfp4  codes   float4_e2m1fn_x2 [ceil(count / 2)]
///          scales  float8_e4m3fn [ceil(count / 16)]; the per-tensor scale is `largest` / 2688
struct CodeSections {
  std::size_t largest = 0;       ///< nvfp4: offset of an f32, the largest magnitude; mxfp8: 0
  std::size_t scales = 0;        ///< offset of the scales, a multiple of 16
  std::size_t scales_bytes = 0;  ///< size of the scales
  std::size_t codes = 0;         ///< offset of the codes, a multiple of 16
  std::size_t codes_bytes = 0;   ///< size of the codes
};

/// Returns the sections of each segment in a frame of `codec`. Reads no frame, so the frame may lie
/// in device memory. Throws InvalidArgumentError for a codec other than mxfp8 and nvfp4.
/// Thread-safe.
std::vector<CodeSections> code_sections(const Codec& codec, std::span<const Segment> segments);

/// Checks a frame in host memory like `Codec::decode`: header and checksum. Call this before the
/// use of a received frame. `dtype` is the dtype of the encoded values. Throws WireError for a
/// malformed frame, a wrong checksum, and a frame that differs from the arguments;
/// InvalidArgumentError like `code_sections`. Thread-safe.
void check_code_frame(const Codec& codec, std::span<const Segment> segments, Dtype dtype,
                      ConstByteSpan frame, const FrameIdentity& identity = {});

}  // namespace tersor
