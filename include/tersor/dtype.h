// The types of values: f32, bf16 and f16 for gradients, and integers for sums on the wire.
#pragma once

#include <tersor/error.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tersor {

/// The type of a value. The numbers are part of the wire format and are never reused.
enum class Dtype : std::uint8_t { kF32 = 0, kBf16 = 1, kF16 = 2, kI8 = 3, kI32 = 4, kU32 = 5 };

/// The bits of a bfloat16, which is the upper half of an f32. Arithmetic uses f32.
struct Bf16 {
  std::uint16_t bits;  ///< bits of the value
};

/// The bits of an IEEE binary16. Arithmetic uses f32.
struct F16 {
  std::uint16_t bits;  ///< bits of the value
};

static_assert(sizeof(Bf16) == 2 && sizeof(F16) == 2);

/// Returns the number of bytes per value.
constexpr std::size_t dtype_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kI8:
      return 1;
    case Dtype::kBf16:
    case Dtype::kF16:
      return 2;
    default:
      return 4;
  }
}

/// Returns "f32", "bf16", "f16", "i8", "i32" or "u32".
constexpr std::string_view dtype_name(Dtype dtype) {
  constexpr std::string_view kNames[] = {"f32", "bf16", "f16", "i8", "i32", "u32"};
  return kNames[static_cast<std::size_t>(dtype)];
}

/// True for the types of gradients: f32, bf16 and f16.
constexpr bool is_gradient_dtype(Dtype dtype) { return dtype <= Dtype::kF16; }

/// Maps a C++ type to its dtype, for templates that take spans.
template <typename T>
struct DtypeOf;
template <>
struct DtypeOf<float> {
  static constexpr Dtype value = Dtype::kF32;
};
template <>
struct DtypeOf<Bf16> {
  static constexpr Dtype value = Dtype::kBf16;
};
template <>
struct DtypeOf<F16> {
  static constexpr Dtype value = Dtype::kF16;
};
template <>
struct DtypeOf<std::int8_t> {
  static constexpr Dtype value = Dtype::kI8;
};
template <>
struct DtypeOf<std::int32_t> {
  static constexpr Dtype value = Dtype::kI32;
};
template <>
struct DtypeOf<std::uint32_t> {
  static constexpr Dtype value = Dtype::kU32;
};

/// Calls `visitor(T{})` with the C++ type of a gradient's dtype: float, Bf16 or F16. Returns the
/// visitor's result. Throws InvalidArgumentError for any other dtype.
template <typename Visitor>
decltype(auto) visit_gradient_dtype(Dtype dtype, Visitor&& visitor) {
  switch (dtype) {
    case Dtype::kF32:
      return visitor(float{});
    case Dtype::kBf16:
      return visitor(Bf16{});
    case Dtype::kF16:
      return visitor(F16{});
    default:
      throw InvalidArgumentError("gradients are f32, bf16 or f16, not " +
                                 std::string(dtype_name(dtype)));
  }
}

}  // namespace tersor
