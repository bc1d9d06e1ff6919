// The arguments of none, bf16 and f16: values that travel as values ("wire" type), on one thread.
// All pointers need only their element's alignment. Results are rounded to nearest even; NaN
// becomes 0x7fff (f32: 0x7fc00000), except where nothing is computed and `none` copies bits.
#pragma once

#include "kernels/host/arguments.h"

#include <cstddef>
#include <span>

namespace tersor::kernels {

/// p as wire values; the residual is p - decoded, and stays what it was where that is not finite.
struct CastEncode {
  const void* gradient;  // `count` values of `dtype`
  Dtype dtype;           // f32, bf16 or f16
  std::size_t count;
  Feedback feedback;
  void* values;      // `count` values of the wire's type
  float factor = 1;  // without a residual, p · factor is written (a mean); in place if need be
  Store store = Store::kCached;
};

/// The sum of the payloads, times `factor`, in order, in f32 and rounded once: the first is
/// value · factor (adding: fma onto the output), each other one is fma(value, factor, sum).
struct CastDecode {
  std::span<const void* const> payloads;  // each `count` values of the wire's type
  std::size_t count;
  float factor = 1;
  DecodeMode mode = DecodeMode::kAssign;  // of no payload: zeros
  void* output;                           // `count` values of `dtype`
  Dtype dtype;
  Store store = Store::kCached;  // adding is always cached
};

/// The sum of the payloads, in order from +0, plus residual_factor · residual, as wire values.
struct CastReduce {
  std::span<const void* const> payloads;
  std::size_t count;
  Feedback feedback;
  void* values;
  Store store = Store::kCached;
};

}  // namespace tersor::kernels
