// The arguments of int8 and int4: ranges of a segment that begin at a block (int8: 256 values,
// int4: 128), on one thread. All pointers of values need only their element's alignment.
#pragma once

#include "kernels/host/arguments.h"

#include <cstddef>
#include <span>

namespace tersor::kernels {

/// One range quantised: scales[ceil(count / block)], codes[ceil(count · bits / 8)] bytes.
struct QuantizeEncode {
  const void* gradient;  // `count` values of `dtype`
  Dtype dtype;           // f32, bf16 or f16
  std::size_t count;
  Feedback feedback;
  Noise noise;
  float* scales;
  std::byte* codes;
  Store store = Store::kCached;
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
  float factor = 1;
  DecodeMode mode = DecodeMode::kAssign;  // of no payload: zeros
  void* output;                           // `count` values of `dtype`
  Dtype dtype;
  Store store = Store::kCached;  // adding is always cached
};

/// The sum of the payloads, in order from +0, plus residual_factor · residual, quantised again.
struct QuantizeReduce {
  std::span<const QuantizedView> payloads;
  std::size_t count;
  Feedback feedback;
  Noise noise;
  float* scales;
  std::byte* codes;
  Store store = Store::kCached;
};

}  // namespace tersor::kernels
