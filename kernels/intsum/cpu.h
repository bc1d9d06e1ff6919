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

/// Where p comes from, and the factor (above 0) that bare values are made with.
struct IntsumSent {
  const void* gradient;  // `count` values of `dtype`
  Dtype dtype;           // f32, bf16 or f16
  std::size_t count;
  ErrorFeedback feedback;
  float factor;
};

/// maxima[ceil(count / 256)]. The residual stays as it is.
void intsum_maxima(const IntsumSent& sent, std::uint32_t* maxima);

/// The scales of all ranks' codes.
void intsum_scales(std::span<const std::uint32_t> maxima, float levels, float* scales);

/// Codes, and the new residual.
struct IntsumEncode {
  IntsumSent sent;
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
