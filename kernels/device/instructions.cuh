// Single instructions without an equivalent C++ operator.
#pragma once

#include "kernels/scalar/bits.h"

#include <cmath>
#include <cstdint>

namespace tersor::kernels {

/// Returns the larger of |a| and |b|, or a NaN without sign if either is a NaN.
TERSOR_DEVICE float larger_magnitude(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(fabsf(a)), "f"(fabsf(b)));
  return most;
}

/// Returns a · b + c, rounded once and clamped to [0, 1].
TERSOR_DEVICE float saturated_multiply_add(float a, float b, float c) {
  float sum;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(a), "f"(b), "f"(c));
  return sum;
}

/// Returns the upper word of (high, low) << bits, for bits < 32.
TERSOR_DEVICE std::uint32_t shifted_in(std::uint32_t high, std::uint32_t low, unsigned bits) {
  return __funnelshift_l(low, high, bits);
}

/// Returns selected bytes of a and b: hexadecimal digit i of `choice` selects byte i. Digits 0 to 3
/// select bytes of a, and digits 4 to 7 select bytes of b.
TERSOR_DEVICE std::uint32_t chosen_bytes(std::uint32_t a, std::uint32_t b, unsigned choice) {
  return __byte_perm(a, b, choice);
}

}  // namespace tersor::kernels
