// Shifts, bit fields and bytes of a thread's registers.
#pragma once

#include "tests/ptx_device/decode/arithmetic.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

namespace ptx {

inline constexpr auto kShl = []<class T>(T a, std::uint32_t b) {
  return b >= 8 * sizeof(T) ? T{0} : static_cast<T>(a << b);
};
inline constexpr auto kShr = []<class T>(T a, std::uint32_t b) {
  constexpr std::uint32_t kMost = 8 * sizeof(T) - 1;
  if constexpr (std::is_signed_v<T>)
    return static_cast<T>(a >> (b > kMost ? kMost : b));
  else
    return b > kMost ? T{0} : static_cast<T>(a >> b);
};
template <bool kLeft, bool kWrap>
inline constexpr auto kFunnel = [](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const unsigned shift = kWrap ? c & 31 : c > 32 ? 32 : c;
  const std::uint64_t both = (std::uint64_t{b} << 32) | a;
  return static_cast<std::uint32_t>(kLeft ? (both << shift) >> 32 : both >> shift);
};
/// b set bits starting at bit a.
template <bool kClamp>
inline constexpr auto kBmsk = [](std::uint32_t a, std::uint32_t b) -> std::uint32_t {
  if (kClamp && a >= 32) return 0;
  const std::uint32_t end = (a & 31) + (b & 31), mask = ~0u << (a & 31);
  return end >= 32 || (kClamp && b >= 32) ? mask : mask & ~(~0u << end);
};
inline constexpr auto kPopc = [](auto a) { return static_cast<std::uint32_t>(std::popcount(a)); };
inline constexpr auto kClz = [](auto a) { return static_cast<std::uint32_t>(std::countl_zero(a)); };
inline constexpr auto kBrev = []<class T>(T a) {
  constexpr unsigned kBits = 8 * sizeof(T);
  T result = 0;
  for (unsigned i = 0; i < kBits; ++i) result |= ((a >> i) & T{1}) << (kBits - 1 - i);
  return result;
};
template <bool kShiftAmount>
inline constexpr auto kBfind = []<class T>(T a) -> std::uint32_t {
  Unsigned<T> bits = static_cast<Unsigned<T>>(a);
  if constexpr (std::is_signed_v<T>) bits = a < 0 ? ~bits : bits;
  if (bits == 0) return ~0u;
  const auto zeros = static_cast<std::uint32_t>(std::countl_zero(bits));
  return kShiftAmount ? zeros : 8 * sizeof(T) - 1 - zeros;
};
inline constexpr auto kBfe = []<class T>(T a, std::uint32_t b, std::uint32_t c) -> T {
  using U = Unsigned<T>;
  constexpr unsigned kBits = 8 * sizeof(T);
  const unsigned position = b & 0xff, length = c & 0xff;
  if (length == 0) return 0;
  const U bits = static_cast<U>(a);
  const bool sign =
      std::is_signed_v<T> && ((bits >> std::min(position + length - 1, kBits - 1)) & 1) != 0;
  U result = sign ? ~U{0} : U{0};
  for (unsigned i = 0; i < length && i < kBits && position + i < kBits; ++i)
    result = (result & ~(U{1} << i)) | (((bits >> (position + i)) & 1) << i);
  return static_cast<T>(result);
};
inline constexpr auto kPrmt = [](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const std::uint64_t both = (std::uint64_t{b} << 32) | a;
  std::uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const std::uint32_t pick = (c >> (4 * i)) & 0xf;
    std::uint32_t byte = static_cast<std::uint32_t>(both >> (8 * (pick & 7))) & 0xff;
    const std::uint32_t sign = (byte & 0x80) != 0 ? 0xffu : 0u;
    byte = (pick & 8) != 0 ? sign : byte;
    result |= byte << (8 * i);
  }
  return result;
};
/// A and B: the types of the factors' bytes, signed or unsigned.
template <class A, class B>
inline constexpr auto kDp4a = [](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  for (unsigned i = 0; i < 4; ++i) {
    const std::int32_t x = static_cast<A>(a >> (8 * i)), y = static_cast<B>(b >> (8 * i));
    c += static_cast<std::uint32_t>(x * y);
  }
  return c;
};

}  // namespace ptx
