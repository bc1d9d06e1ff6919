// Functions of f32 and f64, and what .sat and .ftz do to them. The approximations are rounded from
// f64: better than a device's, whose last bits differ.
#pragma once

#include "tests/ptx_device/machine/numbers.h"

#include <cmath>
#include <cstdint>

namespace ptx {

struct Sqrt {
  template <class T>
  static T f(T a) {
    return canonical(std::sqrt(a));
  }
};
struct Rcp {
  template <class T>
  static T f(T a) {
    return canonical(T{1} / a);
  }
};
struct Rsqrt {
  template <class T>
  static T f(T a) {
    return canonical(static_cast<T>(1.0 / std::sqrt(static_cast<double>(a))));
  }
};
struct CopySign {
  template <class T>
  static T f(T a, T b) {
    return std::copysign(b, a);
  }
};

template <double (*kFunction)(double)>
struct Approximate {
  static float f(float a) {
    return canonical(static_cast<float>(kFunction(static_cast<double>(a))));
  }
};
using Exp2 = Approximate<std::exp2>;
using Log2 = Approximate<std::log2>;
using Sin = Approximate<std::sin>;
using Cos = Approximate<std::cos>;
using Tanh = Approximate<std::tanh>;

/// .sat: to [0, 1], NaN becomes 0.
inline float saturated(float a) { return a != a || a < 0 ? 0.0f : a > 1 ? 1.0f : a; }
template <class Inner>
struct Saturated {
  template <class... T>
  static float f(T... values) {
    return saturated(Inner::f(values...));
  }
};

/// .ftz: subnormal numbers are zero.
inline float flushed(float a) {
  return (bits32(a) & 0x7f800000u) == 0 ? float32(bits32(a) & 0x80000000u) : a;
}
template <class Inner>
struct Flushed {
  template <class... T>
  static float f(T... values) {
    return flushed(Inner::f(flushed(values)...));
  }
};

}  // namespace ptx
