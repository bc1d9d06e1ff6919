// What codecs call of a quantising format: on hosts with ranges of a segment that begin at a block
// (int8: 256 values, int4: 128), on one thread; on devices with whole calls. The bytes are the same
// everywhere. kernels/quantize/cpu.cc and cuda.cu make it all for the formats of formats.h, or of
// another list, which TERSOR_QUANTIZE_FORMATS names.
#pragma once

#include "kernels/device/device_frame.h"
#include "kernels/host/arguments.h"

#include <tersor/codec.h>

#include <cstddef>
#include <span>

#ifndef TERSOR_QUANTIZE_FORMATS
#define TERSOR_QUANTIZE_FORMATS "kernels/quantize/formats.h"
#endif

namespace tersor::kernels {

/// Where the scales[ceil(count / block)] and codes[ceil(count · bits / 8)] of a range are written.
struct QuantizeOutput {
  float* scales;
  std::byte* codes;
  Store store = Store::kCached;
  StreamedWords* words = nullptr;  // of the codes; null: no sum
};

/// One range quantised. All pointers of values need only their element's alignment.
struct QuantizeEncode {
  Sent sent;
  Noise noise;
  QuantizeOutput output;
};

/// The scales and codes of one payload, from the block where the range begins. Any bytes will do.
struct QuantizedView {
  const float* scales;
  const std::byte* codes;
};

/// The sum of the payloads, times `factor`, in order, in f32 and rounded once into the output.
struct QuantizeDecode {
  std::span<const QuantizedView> payloads;
  std::size_t count;
  Decoded to;
};

/// The sum of the payloads, times `factor`, in order from +0, plus residual_factor · residual,
/// quantised again.
struct QuantizeReduce {
  std::span<const QuantizedView> payloads;
  std::size_t count;
  float factor = 1;
  ErrorFeedback feedback;
  Noise noise;
  QuantizeOutput output;
};

/// The loops of a format for one instruction set.
struct QuantizeLoops {
  void (*encode)(const QuantizeEncode&);
  void (*decode)(const QuantizeDecode&);
  void (*reduce)(const QuantizeReduce&);
};

/// Those of the instruction set that this call is to run on.
template <class Format>
QuantizeLoops quantize_loops();

/// Queued on the call's stream; the call was checked.
template <class Format>
void quantize_device_encode(const EncodeCall& call, Rounding rounding, const DeviceFrame& frame);
/// Frames whose header is not `expected` make the outputs NaN.
template <class Format>
void quantize_device_decode(const DecodeCall& call, const FrameHeader& expected);
/// Frames whose header is not `expected` poison all blocks of the one that is written.
template <class Format>
void quantize_device_reduce(const ReduceCall& call, Rounding rounding, const DeviceFrame& frame);

}  // namespace tersor::kernels
