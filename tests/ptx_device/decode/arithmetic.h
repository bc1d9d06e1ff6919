// PTX arithmetic of a single thread. Integers wrap around, and NaNs have the device's bits.
#pragma once

#include "tests/ptx_device/machine/numbers.h"

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace ptx {

template <class T>
using Unsigned = std::make_unsigned_t<T>;
/// The integer type of twice the size.
template <class T>
using Wide = std::conditional_t<
    sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>,
    std::conditional_t<sizeof(T) == 4,
                       std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>,
                       std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>>>;

inline constexpr auto kAdd = []<class T>(T a, T b) -> T {
  if constexpr (std::is_floating_point_v<T>)
    return canonical(a + b);
  else
    return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
};
inline constexpr auto kSub = []<class T>(T a, T b) -> T {
  if constexpr (std::is_floating_point_v<T>)
    return canonical(a - b);
  else
    return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
};
inline constexpr auto kMul = []<class T>(T a, T b) -> T {  // lower half for integers
  if constexpr (std::is_floating_point_v<T>)
    return canonical(a * b);
  else
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
};
inline constexpr auto kMulHigh = []<class T>(T a, T b) {
  return static_cast<T>((static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) >> (8 * sizeof(T)));
};
inline constexpr auto kMulWide = []<class T>(T a, T b) -> Wide<T> {
  return static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b);
};
inline constexpr auto kMad = []<class T>(T a, T b, T c) { return kAdd(kMul(a, b), c); };
inline constexpr auto kMadHigh = []<class T>(T a, T b, T c) { return kAdd(kMulHigh(a, b), c); };
inline constexpr auto kMadWide = []<class T>(T a, T b, Wide<T> c) {
  return kAdd(kMulWide(a, b), c);
};
inline constexpr auto kFma = []<class T>(T a, T b, T c) { return canonical(std::fma(a, b, c)); };
inline constexpr auto kDiv = []<class T>(T a, T b) -> T {
  if constexpr (std::is_floating_point_v<T>) {
    return canonical(a / b);
  } else {
    if (b == 0) return static_cast<T>(~T{0});
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return kSub(T{0}, a);
    return a / b;
  }
};
inline constexpr auto kRem = []<class T>(T a, T b) -> T {
  if (b == 0) return a;
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
  return a % b;
};
inline constexpr auto kNeg = []<class T>(T a) -> T {
  if constexpr (std::is_floating_point_v<T>)
    return -a;
  else
    return kSub(T{0}, a);
};
inline constexpr auto kAbs = []<class T>(T a) -> T {
  if constexpr (std::is_same_v<T, float>)
    return float32(bits32(a) & 0x7fffffffu);
  else if constexpr (std::is_same_v<T, double>)
    return std::fabs(a);
  else
    return a < 0 ? kNeg(a) : a;
};
inline constexpr auto kMin = []<class T>(T a, T b) -> T {
  if constexpr (std::is_floating_point_v<T>)
    return smaller(a, b);
  else
    return a < b ? a : b;
};
inline constexpr auto kMax = []<class T>(T a, T b) -> T {
  if constexpr (std::is_floating_point_v<T>)
    return larger(a, b);
  else
    return a > b ? a : b;
};
inline constexpr auto kSad = []<class T>(T a, T b, T c) {
  return kAdd(c, a < b ? kSub(b, a) : kSub(a, b));
};

inline constexpr auto kAnd = []<class T>(T a, T b) -> T { return a & b; };
inline constexpr auto kOr = []<class T>(T a, T b) -> T { return a | b; };
inline constexpr auto kXor = []<class T>(T a, T b) -> T { return a ^ b; };
inline constexpr auto kNot = []<class T>(T a) -> T { return ~a; };
inline constexpr auto kSame = []<class T>(T a) { return a; };

}  // namespace ptx
