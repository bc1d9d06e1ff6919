// Functions of f32 and f64, and the modifiers .sat and .ftz. Approximate functions are rounded from
// f64. The results are more accurate than on a GPU; the last bits differ.
#pragma once

#include "tests/ptx_device/machine/numbers.h"

#include <cmath>
#include <cstdint>

namespace ptx {

inline constexpr auto kSqrt = [](auto a) { return canonical(std::sqrt(a)); };
inline constexpr auto kRcp = []<class T>(T a) { return canonical(T{1} / a); };
inline constexpr auto kRsqrt = []<class T>(T a) {
  return canonical(static_cast<T>(1.0 / std::sqrt(static_cast<double>(a))));
};
inline constexpr auto kCopySign = []<class T>(T a, T b) { return std::copysign(b, a); };

/// .NaN: the result is NaN if an operand is NaN.
template <auto F>
inline constexpr auto kOrNan =
    []<class T>(T a, T b) { return a != a || b != b ? canonical(a + b) : F(a, b); };

/// Only for f32.
template <double (*kFunction)(double)>
inline constexpr auto kApproximate =
    [](float a) { return canonical(static_cast<float>(kFunction(static_cast<double>(a)))); };

/// .sat: clamps to [0, 1]; NaN becomes 0.
inline float saturated(float a) { return a != a || a < 0 ? 0.0f : a > 1 ? 1.0f : a; }
template <auto F>
inline constexpr auto kSaturated = [](auto... values) { return saturated(F(values...)); };

/// .ftz: flushes subnormal numbers to zero.
inline float flushed(float a) {
  return (bits32(a) & 0x7f800000u) == 0 ? float32(bits32(a) & 0x80000000u) : a;
}
template <auto F>
inline constexpr auto kFlushed = [](auto... values) { return flushed(F(flushed(values)...)); };

}  // namespace ptx
