// f32 <-> bf16 and f16, value by value: rounds to nearest even, and every NaN becomes 0x7fff.
// Devices have an equivalent instruction for each conversion (PTX ISA, cvt).
#pragma once

#include "kernels/scalar/bits.h"

#include <tersor/dtype.h>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace tersor::kernels {

constexpr std::uint16_t kNarrowNanBits = 0x7fff;         // the NaN of bf16 and f16 on the wire
constexpr std::uint32_t kF16OverflowBits = 0x477ff000u;  // magnitudes from 65520 become infinite
constexpr float kF16Max = 65504.0f;

TERSOR_BODY float bf16_to_f32(std::uint16_t bits) {
  return float_of(static_cast<std::uint32_t>(bits) << 16);
}

TERSOR_BODY std::uint16_t f32_to_bf16(float value) {
#if defined(__CUDA_ARCH__)
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
  const std::uint32_t bits = bits_of(value);
  if (magnitude_bits(value) > kInfinityBits) return kNarrowNanBits;
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#endif
}

/// Rounds a value to one of the two adjacent bf16, as an f32. The result is the bf16 farther from
/// zero if the truncated bits plus `random` (16 bits) carry. NaN stays NaN.
TERSOR_BODY float stochastic_bf16(float value, std::uint32_t random) {
  if (magnitude_bits(value) > kInfinityBits) return float_of(kNanBits);
  return float_of((bits_of(value) + random) & 0xffff0000u);
}

TERSOR_BODY float f16_to_f32(std::uint16_t bits) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(bits));
#else
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude > 0x7c00u) return float_of(sign | kNanBits | magnitude << 13);
  if (magnitude == 0x7c00u) return float_of(sign | kInfinityBits);
  if (magnitude >= 0x0400u) return float_of(sign | ((magnitude << 13) + 0x38000000u));
  return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-24f));
#endif
}

TERSOR_BODY std::uint16_t f32_to_f16(float value) {
#if defined(__CUDA_ARCH__)
  return __half_as_ushort(__float2half_rn(value));
#else
  const std::uint32_t magnitude = magnitude_bits(value);
  const std::uint32_t sign = bits_of(value) >> 16 & 0x8000u;
  if (magnitude > kInfinityBits) return kNarrowNanBits;
  if (magnitude >= kF16OverflowBits) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 1/2 leaves multiples of 2^-24
    const std::uint32_t code = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    return static_cast<std::uint16_t>(sign | code);
  }
  const std::uint32_t even = magnitude >> 13 & 1u;
  return static_cast<std::uint16_t>(sign | (magnitude - 0x38000000u + 0xfffu + even) >> 13);
#endif
}

/// Clamps a finite value to the range of f16. Infinities and NaNs are not changed.
TERSOR_BODY float within_f16(float value) {
#if defined(__CUDA_ARCH__)
  const float within = fminf(fmaxf(value, -kF16Max), kF16Max);
  return fabsf(value) < float_of(kInfinityBits) ? within : value;
#else
  if (!is_finite(value)) return value;
  return value > kF16Max ? kF16Max : value < -kF16Max ? -kF16Max : value;
#endif
}

/// An f16 value rounded by IEEE 754: finite values may become infinities. Payloads and transports
/// use IeeeF16. Decodes write F16, which saturates.
struct IeeeF16 {
  std::uint16_t bits;
};

TERSOR_BODY float to_f32(float value) { return value; }
TERSOR_BODY float to_f32(Bf16 value) { return bf16_to_f32(value.bits); }
TERSOR_BODY float to_f32(F16 value) { return f16_to_f32(value.bits); }
TERSOR_BODY float to_f32(IeeeF16 value) { return f16_to_f32(value.bits); }

/// Rounds an f32 to a gradient's type. As F16, a finite value stays finite: the largest magnitude
/// is 65504. An f32 keeps its bits.
template <typename T>
TERSOR_BODY T from_f32(float value);
template <>
TERSOR_BODY float from_f32<float>(float value) {
  return value;
}
template <>
TERSOR_BODY Bf16 from_f32<Bf16>(float value) {
  return {f32_to_bf16(value)};
}
template <>
TERSOR_BODY F16 from_f32<F16>(float value) {
  return {f32_to_f16(within_f16(value))};
}
template <>
TERSOR_BODY IeeeF16 from_f32<IeeeF16>(float value) {
  return {f32_to_f16(value)};
}

}  // namespace tersor::kernels
