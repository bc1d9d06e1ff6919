// What the entry points of the CPU kernels share: what is sent, with error feedback and noise, and
// how to store.
#pragma once

#include <tersor/dtype.h>
#include <tersor/modes.h>

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// How results are written. Streaming goes past the caches: for outputs that are larger than they
/// are.
enum class Store : std::uint8_t { kCached, kStreaming };

/// Error feedback: what is sent is p = gradient_factor · g + residual_factor · e (two products and
/// a sum, each rounded), and what p and its decoded value differ in is the new residual. No
/// feedback where `residual_in` is null: then p = g.
struct ErrorFeedback {
  const void* residual_in = nullptr;  // `count` values of `dtype`
  void* residual_out = nullptr;  // the same span as residual_in, or one that does not overlap it
  Dtype dtype = Dtype::kF32;     // f32 or bf16
  float gradient_factor = 1;     // a reduction ignores it
  float residual_factor = 1;
  Store store = Store::kCached;  // of residual_out, where it is another span
};

/// What a range is encoded from: p, which feedback makes of its gradient.
struct Sent {
  const void* gradient = nullptr;  // `count` values of `dtype`
  Dtype dtype = Dtype::kF32;       // f32, bf16 or f16
  std::size_t count = 0;
  ErrorFeedback feedback = {};
};

/// What becomes of the sum of payloads, in their order: it is assigned or added, times `factor`,
/// and rounded once.
struct Decoded {
  void* output = nullptr;  // as many values of `dtype` as the payloads have
  Dtype dtype = Dtype::kF32;
  float factor = 1;
  DecodeMode mode = DecodeMode::kAssign;  // of no payload: zeros
  Store store = Store::kCached;           // adding is always cached
};

/// How to round, and for stochastic rounding which random bytes to use (kernels/scalar/philox.h).
struct Noise {
  Rounding rounding = Rounding::kNearest;
  std::uint64_t key = 0;
  std::uint32_t step = 0;
  std::uint32_t parameter = 0;
  std::uint64_t first_index = 0;  // where the range begins in its parameter
};

/// The sum of the words that a kernel streams to a frame, which nobody could read back soon.
struct StreamedWords {
  std::uint64_t first = 0;  // where they begin in the frame, in words
  std::uint64_t sum = 0;    // their part of the checksum; the kernel's answer
};

}  // namespace tersor::kernels
