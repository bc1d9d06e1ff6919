// Rows: the few consecutive values owned by one thread of a warp, held in registers as f32. A whole
// and aligned row moves 8 or 16 bytes at a time. Any other row is moved value by value, by the same
// thread.
#pragma once

#include "kernels/device/memory.cuh"
#include "kernels/scalar/convert.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

/// How memory is loaded. Use kInput for memory not written during the launch, and kAny otherwise.
enum class Load : std::uint8_t { kInput, kAny };

/// The widest unit for moving `kBytes` consecutive bytes.
template <std::size_t kBytes>
using UnitOf = std::conditional_t<
    kBytes % 16 == 0, Words128,
    std::conditional_t<kBytes % 8 == 0, Words64,
                       std::conditional_t<kBytes % 4 == 0, std::uint32_t, std::uint16_t>>>;

/// True if rows can be moved in their widest unit. Rows must start at multiples of their length.
template <typename T, unsigned kValues>
TERSOR_DEVICE bool is_aligned_for(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % sizeof(UnitOf<kValues * sizeof(T)>) == 0;
}

template <Load kLoad, typename Unit>
TERSOR_DEVICE Unit load_unit(const Unit* pointer) {
  if constexpr (kLoad == Load::kInput)
    return load_input(pointer);
  else
    return load(pointer);
}

/// A run of `kBytes` bytes, stored as units of the widest type.
template <std::size_t kBytes>
struct alignas(kBytes % 16 == 0 ? 16 : kBytes) RowBytes {
  using Unit = UnitOf<kBytes>;
  static constexpr unsigned kUnits = kBytes / sizeof(Unit);

  template <Load kLoad>
  TERSOR_DEVICE static RowBytes load_from(const void* pointer) {
    RowBytes row;
    TERSOR_UNROLL
    for (unsigned i = 0; i < kUnits; ++i)
      row.unit[i] = load_unit<kLoad>(static_cast<const Unit*>(pointer) + i);
    return row;
  }

  TERSOR_DEVICE void store_to(void* pointer) const {
    TERSOR_UNROLL
    for (unsigned i = 0; i < kUnits; ++i) store(static_cast<Unit*>(pointer) + i, unit[i]);
  }

  Unit unit[kUnits];
};

/// Returns the bits of a 16-bit or 32-bit value.
TERSOR_DEVICE std::uint32_t bits_of_value(float value) { return bits_of(value); }
template <typename T>
TERSOR_DEVICE std::uint32_t bits_of_value(T value) {
  return value.bits;
}

/// Unpacks the values of a row in order.
template <typename T, unsigned kValues>
TERSOR_DEVICE void unpack_row(const RowBytes<kValues * sizeof(T)>& row, float (&values)[kValues]) {
  std::uint32_t word[kValues * sizeof(T) / 4];
  static_assert(sizeof word == sizeof row);
  std::memcpy(word, &row, sizeof row);
  TERSOR_UNROLL
  for (unsigned i = 0; i < kValues; ++i) {
    if constexpr (sizeof(T) == 4)
      values[i] = float_of(word[i]);
    else
      values[i] = to_f32(T{static_cast<std::uint16_t>(word[i / 2] >> (i % 2 * 16))});
  }
}

template <typename T, unsigned kValues>
TERSOR_DEVICE RowBytes<kValues * sizeof(T)> pack_row(const float (&values)[kValues]) {
  std::uint32_t word[kValues * sizeof(T) / 4] = {};
  TERSOR_UNROLL
  for (unsigned i = 0; i < kValues; ++i) {
    const std::uint32_t bits = bits_of_value(from_f32<T>(values[i]));
    if constexpr (sizeof(T) == 4)
      word[i] = bits;
    else
      word[i / 2] |= bits << (i % 2 * 16);
  }
  RowBytes<kValues * sizeof(T)> row;
  std::memcpy(&row, word, sizeof row);
  return row;
}

/// The position of a row. The row has `left` existing values, and further values count as 0. The
/// member `aligned` is true if rows of this span move as a whole.
struct RowPosition {
  std::size_t first;
  std::size_t left;
  bool aligned;
};

template <Load kLoad, typename T, unsigned kValues>
TERSOR_DEVICE void load_row(const T* values, RowPosition position, float (&row)[kValues]) {
  const T* from = values + position.first;
  if (position.aligned && position.left >= kValues)
    return unpack_row<T>(RowBytes<kValues * sizeof(T)>::template load_from<kLoad>(from), row);
  TERSOR_UNROLL
  for (unsigned i = 0; i < kValues; ++i) row[i] = i < position.left ? to_f32(load(from + i)) : 0.0f;
}

template <typename T, unsigned kValues>
TERSOR_DEVICE void store_row(const float (&row)[kValues], T* values, RowPosition position) {
  T* to = values + position.first;
  if (position.aligned && position.left >= kValues) return pack_row<T>(row).store_to(to);
  TERSOR_UNROLL
  for (unsigned i = 0; i < kValues; ++i) {
    if (i < position.left) store(to + i, from_f32<T>(row[i]));
  }
}

/// Copies a row bit by bit.
template <typename T, unsigned kValues>
TERSOR_DEVICE void copy_row(const T* from, T* to, RowPosition position) {
  TERSOR_UNROLL
  for (unsigned i = 0; i < kValues; ++i) {
    if (i < position.left) store(to + position.first + i, load(from + position.first + i));
  }
}

}  // namespace tersor::kernels
