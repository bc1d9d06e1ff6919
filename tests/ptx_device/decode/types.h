// PTX types, and the selection of templates by type.
#pragma once

#include "tests/ptx_device/machine/kernel.h"

#include <cstdint>
#include <string>
#include <type_traits>

namespace ptx {

/// The kind of arithmetic of a type.
enum class Family : std::uint8_t { kNone, kPredicate, kInteger, kHalf, kFloat };

bool is_type(const std::string& word);
/// The size of a type in bytes; 0 for predicates.
unsigned bytes_of_type(const std::string& type);
Family family_of(const std::string& type);

/// Calls choose.template operator()<T>() with the C++ type of a PTX integer type. Returns null for
/// other types.
template <class F>
WarpFunction by_integer(const std::string& type, F choose) {
  if (type == "s16") return choose.template operator()<std::int16_t>();
  if (type == "u16" || type == "b16") return choose.template operator()<std::uint16_t>();
  if (type == "s32") return choose.template operator()<std::int32_t>();
  if (type == "u32" || type == "b32") return choose.template operator()<std::uint32_t>();
  if (type == "s64") return choose.template operator()<std::int64_t>();
  if (type == "u64" || type == "b64") return choose.template operator()<std::uint64_t>();
  return nullptr;
}

/// An integer type with the sign of T and the size of a register.
template <class T, unsigned kBytes>
struct RegisterFor;
template <class T>
struct RegisterFor<T, 2> {
  using type = std::conditional_t<std::is_signed_v<T>, std::int16_t, std::uint16_t>;
};
template <class T>
struct RegisterFor<T, 4> {
  using type = std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>;
};
template <class T>
struct RegisterFor<T, 8> {
  using type = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
};

/// Calls choose.template operator()<T, R>() for a register R containing T, of equal or larger size.
template <class T, class F>
WarpFunction by_register(unsigned bytes, F choose) {
  if constexpr (sizeof(T) <= 2)
    if (bytes == 2) return choose.template operator()<T, typename RegisterFor<T, 2>::type>();
  if constexpr (sizeof(T) <= 4)
    if (bytes == 4) return choose.template operator()<T, typename RegisterFor<T, 4>::type>();
  if (bytes == 8) return choose.template operator()<T, typename RegisterFor<T, 8>::type>();
  return nullptr;
}

}  // namespace ptx
