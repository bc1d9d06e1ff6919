// Single instructions without an equivalent C++ operator.
#pragma once

#include "kernels/scalar/bits.h"
#include "kernels/scalar/convert.h"

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

/// Returns the larger of |a| and |b|, or a NaN without sign if either is a NaN.
TERSOR_DEVICE float larger_magnitude(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(fabsf(a)), "f"(fabsf(b)));
  return most;
}

/// Like larger_magnitude, for the lower and the upper halves of two words of type Bf16 or F16. The
/// values in `a` have no sign.
template <typename T>
TERSOR_DEVICE std::uint32_t larger_magnitudes(std::uint32_t a, std::uint32_t b) {
  constexpr std::uint32_t kMagnitudes = 0x7fff7fffu;
  std::uint32_t most;
  if constexpr (std::is_same_v<T, Bf16>)
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b & kMagnitudes));
  else
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b & kMagnitudes));
  return most;
}

/// Returns a · b + c, rounded once and clamped to [0, 1].
TERSOR_DEVICE float saturated_multiply_add(float a, float b, float c) {
  float sum;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(a), "f"(b), "f"(c));
  return sum;
}

/// Returns 1 / value, rounded to nearest, if value and result are normal numbers. Otherwise the
/// result is undefined. __frcp_rn executes the same instructions for such a value, after a branch.
TERSOR_DEVICE float normal_reciprocal(float value) {
  float near;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(value));
  return fused_multiply_add(near, -fused_multiply_add(value, near, -1.0f), near);
}

/// Returns the upper word of (high, low) << bits, for bits < 32.
TERSOR_DEVICE std::uint32_t funnel_shift_left(std::uint32_t high, std::uint32_t low,
                                              unsigned bits) {
  return __funnelshift_l(low, high, bits);
}

/// Returns selected bytes of a and b: hexadecimal digit i of `choice` selects byte i. Digits 0 to 3
/// select bytes of a, and digits 4 to 7 select bytes of b.
TERSOR_DEVICE std::uint32_t select_bytes(std::uint32_t a, std::uint32_t b, unsigned choice) {
  return __byte_perm(a, b, choice);
}

}  // namespace tersor::kernels
