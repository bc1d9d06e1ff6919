// Arguments shared by the entry points of CPU kernels: values to send with error feedback and
// noise, and store modes.
#pragma once

#include <tersor/dtype.h>
#include <tersor/modes.h>

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// How results are written. Streaming stores bypass the caches, for outputs larger than the caches.
enum class Store : std::uint8_t { kCached, kStreaming };

/// Error feedback. The corrected gradient is p = gradient_factor · g + residual_factor · e: two
/// products and a sum, each rounded. The new residual is the difference between p and its decoded
/// value. If `residual_in` is null, feedback is off and p = g.
struct ErrorFeedback {
  const void* residual_in = nullptr;  // `count` values of `dtype`
  void* residual_out = nullptr;       // equal to residual_in, or not overlapping
  Dtype dtype = Dtype::kF32;          // f32 or bf16
  float gradient_factor = 1;          // ignored by a reduction
  float residual_factor = 1;
  Store store = Store::kCached;  // of residual_out, if not in place
};

/// The input of an encode: p, computed from a range of the gradient and the feedback.
struct EncodeInput {
  const void* gradient = nullptr;  // `count` values of `dtype`
  Dtype dtype = Dtype::kF32;       // f32, bf16 or f16
  std::size_t count = 0;
  ErrorFeedback feedback = {};
};

/// The output of a decode: the sum of payloads, in order, is assigned or added, times `factor`, and
/// rounded once.
struct DecodeOutput {
  void* output = nullptr;  // one value of `dtype` per payload value
  Dtype dtype = Dtype::kF32;
  float factor = 1;
  DecodeMode mode = DecodeMode::kAssign;  // without payloads, zeros are assigned
  Store store = Store::kCached;           // adding is always cached
};

/// How to round, and the random bytes for stochastic rounding (kernels/scalar/philox.h).
struct Noise {
  Rounding rounding = Rounding::kNearest;
  std::uint64_t key = 0;
  std::uint32_t step = 0;
  std::uint32_t parameter = 0;
  std::uint64_t first_index = 0;  // index of the range's first value in its parameter
};

/// The sum of the words that a kernel streams to a frame. Streamed words cannot be read back
/// quickly.
struct StreamedWords {
  std::uint64_t first = 0;  // index of the first streamed word in the frame
  std::uint64_t sum = 0;    // output: the words' part of the checksum
};

}  // namespace tersor::kernels
