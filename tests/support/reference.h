// The arithmetic of docs/wire-format.md once more, written from the document alone, in double
// precision, slowly: what the tests hold the kernels against. Nothing here includes kernels.
#pragma once

#include <tersor/dtype.h>
#include <tersor/span.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tersor::test {

/// The bits of an f32, and back.
std::uint32_t bits(float value);
float from_bits(std::uint32_t value);

/// The bf16 or f16 nearest to a value (ties to even; NaN is 0x7fff), and back.
std::uint16_t narrow(float value, Dtype dtype);
float widen(std::uint16_t value, Dtype dtype);

/// One of the two bf16 about a value, with 16 random bits.
std::uint16_t narrow_stochastic(float value, std::uint32_t random);

/// `value` rounded to a gradient's dtype, as an f32.
float rounded(float value, Dtype dtype);
/// The same for a decode: a finite value beyond f16's range is 65504 with the value's sign.
float decoded_as(float value, Dtype dtype);

/// p = gradient_factor · gradient + residual_factor · residual, each step rounded.
float with_feedback(float gradient_factor, float gradient, float residual_factor, float residual);

/// One step of splitmix64: a well-mixed number for each state.
std::uint64_t mixed(std::uint64_t state);

/// Philox4x32 with 7 rounds (Salmon et al., SC 2011).
std::array<std::uint32_t, 4> philox7(std::array<std::uint32_t, 4> counter, std::uint64_t key);

/// The random byte of one value of a parameter.
std::uint32_t random_byte(std::uint64_t element, std::uint64_t key, std::uint32_t step,
                          std::uint32_t parameter);

/// Its 16 random bits.
std::uint32_t random_bits(std::uint64_t element, std::uint64_t key, std::uint32_t step,
                          std::uint32_t parameter);

/// The checksum of docs/wire-format.md; the frame's own field counts as 0.
std::uint64_t frame_checksum(ConstByteSpan frame);

/// What blockwise quantisation makes of one list of values.
struct Quantized {
  std::vector<float> scales;
  std::vector<int> codes;
  std::vector<float> residual;  // of poisoned blocks: the old one
};

struct QuantizeTask {
  int levels;         // 127 or 7
  std::size_t block;  // 256 or 128
  bool stochastic = false;
  std::uint64_t key = 0;
  std::uint32_t step = 0;
  std::uint32_t parameter = 0;
  std::uint64_t first_index = 0;
};

/// Quantises p; `old_residual` may be empty (then no residual of poisoned blocks is known).
Quantized quantize(const QuantizeTask& task, const std::vector<float>& p,
                   const std::vector<float>& old_residual);

}  // namespace tersor::test
