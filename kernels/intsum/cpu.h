// intsum on the CPU: processes ranges of a segment on one thread. A range begins at a block of 256
// values. kernels/intsum/formulas.h defines the arithmetic. The bytes are the same on every
// instruction set. Value pointers need only the alignment of their element type.
#pragma once

#include "kernels/quantize/kernels.h"

#include <tersor/codecs/intsum.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tersor::kernels {

/// Computes maxima[ceil(count / 256)] of p times a positive factor. The residual is not changed.
void intsum_maxima(const EncodeInput& sent, float factor, std::uint32_t* maxima);

/// Computes the scales of all ranks' codes.
void intsum_scales(std::span<const std::uint32_t> maxima, float levels, float* scales);

/// Functions for blocks whose scale is given in the spec. intsum_flag_blocks replaces each block's
/// largest magnitude (as bits) by a scale, and writes the flags as accumulators of the size
/// `accumulator_bits`. intsum_flagged_scales computes scales from the sums of flags.
void intsum_flag_blocks(std::span<float> maxima_to_scales, float scale,
                        AccumulatorBits accumulator_bits, std::byte* flags);
void intsum_flagged_scales(const std::byte* flags, AccumulatorBits accumulator_bits, float scale,
                           std::span<float> scales);

/// Computes codes and the new residual.
struct IntsumEncode {
  EncodeInput sent;
  float factor;  // above 0, as for raw values
  float levels;  // the largest code
  Noise noise;
  const float* scales;
  std::byte* codes;
  AccumulatorBits accumulator_bits;
  Store store = Store::kCached;
};
void intsum_encode(const IntsumEncode& arguments);

/// Decodes one view: the shared scales and the sums of codes. Any bytes are valid.
void intsum_decode(const QuantizeDecode& arguments, AccumulatorBits accumulator_bits);

}  // namespace tersor::kernels
