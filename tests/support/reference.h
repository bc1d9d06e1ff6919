// A reference of the arithmetic in docs/reference/wire-format.md for the kernel tests. Written from
// the document alone, in double precision, without optimization; includes no kernels.
#pragma once

#include <tersor/dtype.h>
#include <tersor/span.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tersor::test {

/// Conversions between an f32 and its bits.
std::uint32_t bits(float value);
float from_bits(std::uint32_t value);

/// Conversions to and from bf16 or f16 (round to nearest, ties to even; NaN becomes 0x7fff).
std::uint16_t narrow(float value, Dtype dtype);
float widen(std::uint16_t value, Dtype dtype);

/// Rounds stochastically to one of the two nearest bf16 values, with 16 random bits.
std::uint16_t narrow_stochastic(float value, std::uint32_t random);

/// `value` rounded to a gradient's dtype, as an f32.
float rounded(float value, Dtype dtype);
/// The rounding of a decode: as `rounded`, but finite values beyond f16's range become ±65504.
float decoded_as(float value, Dtype dtype);

/// p = gradient_factor · gradient + residual_factor · residual, with each step rounded.
float with_feedback(float gradient_factor, float gradient, float residual_factor, float residual);

/// One step of splitmix64: a well-mixed number for each state.
std::uint64_t mixed(std::uint64_t state);

/// Philox4x32 with 7 rounds (Salmon et al., SC 2011).
std::array<std::uint32_t, 4> philox7(std::array<std::uint32_t, 4> counter, std::uint64_t key);

/// The random byte of one value of a parameter.
std::uint32_t random_byte(std::uint64_t element, std::uint64_t key, std::uint32_t step,
                          std::uint32_t parameter);

/// The 16 random bits of one value of a parameter.
std::uint32_t random_bits(std::uint64_t element, std::uint64_t key, std::uint32_t step,
                          std::uint32_t parameter);

/// The checksum of docs/reference/wire-format.md. The frame's checksum field counts as 0.
std::uint64_t frame_checksum(ConstByteSpan frame);

/// The blockwise quantization of one list of values.
struct Quantized {
  std::vector<float> scales;
  std::vector<int> codes;
  std::vector<float> residual;  // poisoned blocks keep the old residual
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

/// Quantizes p. If `old_residual` is empty, residuals of poisoned blocks are unknown.
Quantized quantize(const QuantizeTask& task, const std::vector<float>& p,
                   const std::vector<float>& old_residual);

}  // namespace tersor::test
