// The entry points of a quantising format. Host functions process ranges of a segment on one
// thread. A range begins at a multiple of 256 values. Device functions process whole
// calls. The bytes are the same everywhere. kernels/quantize/cpu.cc and cuda.cu instantiate all
// functions for the formats of formats.h.
#pragma once

#include "kernels/device/device_frame.h"
#include "kernels/host/arguments.h"

#include <tersor/codec.h>

#include <cstddef>
#include <span>

namespace tersor::kernels {

/// Addresses of scales[ceil(count / block)] and codes[ceil(count · bits / 8)] to write for a range.
struct QuantizeOutput {
  void* scales;  // as the format stores scales
  std::byte* codes;
  Store store = Store::kCached;
  StreamedWords* words = nullptr;         // checksum of the codes; null: no checksum
  const void* segment_maximum = nullptr;  // largest magnitude, f32, if the format has one
};

/// Encodes one range. Value pointers need only the alignment of their element type.
struct QuantizeEncode {
  EncodeInput sent;
  Noise noise;
  QuantizeOutput output;
};

/// The scales and codes of one payload, starting at the range's first block. Any bytes are valid.
struct QuantizedView {
  QuantizedView() = default;
  QuantizedView(const void* scales, const std::byte* codes) : scales(scales), codes(codes) {}
  QuantizedView(const void* segment_maximum, const void* scales, const std::byte* codes)
      : scales(scales), codes(codes), segment_maximum(segment_maximum) {}

  const void* scales = nullptr;
  const std::byte* codes = nullptr;
  const void* segment_maximum = nullptr;  // as in QuantizeOutput
};

/// Decodes the sum of the payloads, in order, times `factor`. The sum is in f32, rounded once to
/// the output's dtype.
struct QuantizeDecode {
  std::span<const QuantizedView> payloads;
  std::size_t count;
  DecodeOutput to;
};

/// Encodes the sum of the payloads, in order from +0, times `factor`, plus residual_factor ·
/// residual.
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
  // The largest finite magnitude, as bits, that encode and reduce would encode; null if the format
  // has no number for a whole segment.
  std::uint32_t (*largest_sent)(const EncodeInput&);
  std::uint32_t (*largest_sum)(const QuantizeReduce&);
};

/// Returns the loops of the current instruction set.
template <class Format>
QuantizeLoops quantize_loops();

/// Device functions queue their work on the call's stream. The caller has validated the call.
template <class Format>
void quantize_device_encode(const EncodeCall& call, Rounding rounding, const DeviceFrame& frame);
/// If a frame's header differs from `expected`, the outputs become NaN.
template <class Format>
void quantize_device_decode(const DecodeCall& call, const FrameHeader& expected);
/// If an input frame's header differs from the header of `frame`, all blocks of the written frame
/// are poisoned.
template <class Format>
void quantize_device_reduce(const ReduceCall& call, Rounding rounding, const DeviceFrame& frame);

}  // namespace tersor::kernels
