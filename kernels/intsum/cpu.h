// intsum on the CPU: ranges of a segment that begin at a block (256 values), on one thread; the
// arithmetic stands in kernels/intsum/formulas.h. Same bytes on every instruction set. Pointers of
// values need only their element's alignment.
#pragma once

#include "kernels/quantize/kernels.h"

#include <tersor/codecs/intsum.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tersor::kernels {

/// maxima[ceil(count / 256)] of p times a factor above 0. The residual stays as it is.
void intsum_maxima(const Sent& sent, float factor, std::uint32_t* maxima);

/// The scales of all ranks' codes.
void intsum_scales(std::span<const std::uint32_t> maxima, float levels, float* scales);

/// Blocks to the scale of the spec: their own largest magnitudes as bits become scales, and flags
/// of `lanes`; of sums of flags scales are made.
void intsum_flag_blocks(std::span<float> maxima_to_scales, float scale, IntsumLanes lanes,
                        std::byte* flags);
void intsum_flagged_scales(const std::byte* flags, IntsumLanes lanes, float scale,
                           std::span<float> scales);

/// Codes, and the new residual.
struct IntsumEncode {
  Sent sent;
  float factor;  // above 0, that bare values are made with
  float levels;  // the largest code
  Noise noise;
  const float* scales;
  std::byte* codes;
  IntsumLanes lanes;
  Store store = Store::kCached;
};
void intsum_encode(const IntsumEncode& arguments);

/// One view: the shared scales, and the sums of codes. Any bytes will do.
void intsum_decode(const QuantizeDecode& arguments, IntsumLanes lanes);

}  // namespace tersor::kernels
