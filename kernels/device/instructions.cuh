// Single instructions that no operator of C++ becomes.
#pragma once

#include "kernels/scalar/bits.h"

#include <cmath>
#include <cstdint>

namespace tersor::kernels {

/// The larger one of |a| and |b|; a NaN without sign where one of them is a NaN.
TERSOR_DEVICE float larger_magnitude(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(fabsf(a)), "f"(fabsf(b)));
  return most;
}

/// a · b + c, rounded once, and then the nearest value of [0, 1].
TERSOR_DEVICE float saturated_multiply_add(float a, float b, float c) {
  float sum;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(a), "f"(b), "f"(c));
  return sum;
}

/// The upper word of (high, low) << bits, bits below 32.
TERSOR_DEVICE std::uint32_t shifted_in(std::uint32_t high, std::uint32_t low, unsigned bits) {
  return __funnelshift_l(low, high, bits);
}

/// Byte i is the one that digit i of `choice`, in base 16, says: 0 to 3 of a, 4 to 7 of b.
TERSOR_DEVICE std::uint32_t chosen_bytes(std::uint32_t a, std::uint32_t b, unsigned choice) {
  return __byte_perm(a, b, choice);
}

}  // namespace tersor::kernels
