// What PTX's arithmetic is for one thread: integers wrap around, a NaN has the bits of the
// device's.
#pragma once

#include "tests/ptx_device/machine/numbers.h"

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace ptx {

template <class T>
using Unsigned = std::make_unsigned_t<T>;
/// The integer of twice the length.
template <class T>
using Wide = std::conditional_t<
    sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>,
    std::conditional_t<sizeof(T) == 4,
                       std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>,
                       std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>>>;

struct Add {
  template <class T>
  static T f(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return canonical(a + b);
    else
      return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
  }
};
struct Sub {
  template <class T>
  static T f(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return canonical(a - b);
    else
      return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
  }
};
struct Mul {  // of integers the lower half
  template <class T>
  static T f(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return canonical(a * b);
    else
      return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  }
};
struct MulHigh {
  template <class T>
  static T f(T a, T b) {
    return static_cast<T>((static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) >> (8 * sizeof(T)));
  }
};
struct MulWide {
  template <class T>
  static Wide<T> f(T a, T b) {
    return static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b);
  }
};
struct Mad {
  template <class T>
  static T f(T a, T b, T c) {
    return Add::f(Mul::f(a, b), c);
  }
};
struct MadHigh {
  template <class T>
  static T f(T a, T b, T c) {
    return Add::f(MulHigh::f(a, b), c);
  }
};
struct MadWide {
  template <class T>
  static Wide<T> f(T a, T b, Wide<T> c) {
    return Add::f(MulWide::f(a, b), c);
  }
};
struct Fma {
  template <class T>
  static T f(T a, T b, T c) {
    return canonical(std::fma(a, b, c));
  }
};
struct Div {
  template <class T>
  static T f(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      return canonical(a / b);
    } else {
      if (b == 0) return static_cast<T>(~T{0});
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Sub::f(T{0}, a);
      return a / b;
    }
  }
};
struct Rem {
  template <class T>
  static T f(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return a % b;
  }
};
struct Neg {
  template <class T>
  static T f(T a) {
    if constexpr (std::is_floating_point_v<T>)
      return -a;
    else
      return Sub::f(T{0}, a);
  }
};
struct Abs {
  template <class T>
  static T f(T a) {
    if constexpr (std::is_same_v<T, float>)
      return float32(bits32(a) & 0x7fffffffu);
    else if constexpr (std::is_same_v<T, double>)
      return std::fabs(a);
    else
      return a < 0 ? Neg::f(a) : a;
  }
};
struct Min {
  template <class T>
  static T f(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return smaller(a, b);
    else
      return a < b ? a : b;
  }
};
struct Max {
  template <class T>
  static T f(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return larger(a, b);
    else
      return a > b ? a : b;
  }
};
struct Sad {
  template <class T>
  static T f(T a, T b, T c) {
    return Add::f(c, a < b ? Sub::f(b, a) : Sub::f(a, b));
  }
};

struct And {
  template <class T>
  static T f(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <class T>
  static T f(T a, T b) {
    return a | b;
  }
};
struct Xor {
  template <class T>
  static T f(T a, T b) {
    return a ^ b;
  }
};
struct Not {
  template <class T>
  static T f(T a) {
    return ~a;
  }
};
struct Same {
  template <class T>
  static T f(T a) {
    return a;
  }
};

}  // namespace ptx
