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

/// Codes, and the new residual.
struct IntsumEncode {
  Sent sent;
  float factor;  // above 0, that bare values are made with
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
