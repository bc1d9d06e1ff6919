// The bits of a delta's block on a device: fields, searches and values.
#pragma once

#include "kernels/delta/device.h"
#include "kernels/device/memory.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Returns the position of the (rank + 1)-th 1 bit of a word with more than `rank` ones.
TERSOR_DEVICE unsigned nth_one(std::uint32_t bits, unsigned rank) {
  unsigned position = 0;
  TERSOR_UNROLL
  for (unsigned width = 16; width != 0; width /= 2) {
    const unsigned below = count_bits(bits >> position & ((1u << width) - 1));
    const bool above = rank >= below;
    rank -= above ? below : 0;
    position += above ? width : 0;
  }
  return position;
}

/// Returns the index of the last of `count` sorted numbers that is at most `key`. The first number
/// is 0.
TERSOR_DEVICE unsigned find_last(const std::uint16_t* numbers, unsigned count, unsigned key) {
  unsigned found = 0;
  TERSOR_KEEP_LOOP
  for (unsigned step = count <= 1 ? 0 : 1u << (31 - __clz(static_cast<int>(count - 1))); step != 0;
       step /= 2) {
    const unsigned next = min(found + step, count - 1);
    if (numbers[next] <= key) found = next;
  }
  return found;
}

/// The words of a block. Bits behind the block are zeros.
struct DeltaWords {
  const std::uint32_t* words;
  unsigned size;

  TERSOR_DEVICE std::uint32_t word(unsigned index) const {
    return index < size ? load(words + index) : 0;
  }
  /// Returns a field of up to 32 bits.
  TERSOR_DEVICE std::uint32_t field(unsigned bit, unsigned width) const {
    const std::uint32_t bits = __funnelshift_r(word(bit / 32), word(bit / 32 + 1), bit % 32);
    return width == 32 ? bits : bits & ((1u << width) - 1);
  }
  /// Returns a field of up to 63 bits.
  TERSOR_DEVICE std::uint64_t wide_field(unsigned bit, unsigned width) const {
    if (width <= 32) return field(bit, width);
    return field(bit, 32) | std::uint64_t{field(bit + 32, width - 32)} << 32;
  }
  /// True if the bits from `bit` up to the next whole word are zeros, and within the block.
  TERSOR_DEVICE bool pads(unsigned bit) const {
    return bit <= 32 * size && (bit % 32 == 0 || word(bit / 32) >> bit % 32 == 0);
  }
};

/// A value of a delta's plain block, which is aligned to 32-bit words.
template <typename Bits>
TERSOR_DEVICE Bits load_plain(const std::uint32_t* words, unsigned index) {
  if constexpr (sizeof(Bits) == 8)
    return load(words + 2 * index) | Bits{load(words + 2 * index + 1)} << 32;
  else
    return load(reinterpret_cast<const Bits*>(words) + index);
}
template <typename Bits>
TERSOR_DEVICE void store_plain(std::uint32_t* words, unsigned index, Bits value) {
  if constexpr (sizeof(Bits) == 8) {
    store(words + 2 * index, static_cast<std::uint32_t>(value));
    store(words + 2 * index + 1, static_cast<std::uint32_t>(value >> 32));
  } else {
    store(reinterpret_cast<Bits*>(words) + index, value);
  }
}

/// A tensor whose values have the width of Bits.
template <typename Bits>
struct DeltaTensorKernel {
  static constexpr unsigned kThreads = 256, kResident = 3;
  static constexpr unsigned kBlock = kDeltaBlock;
  static constexpr unsigned kBlockWords = kBlock * sizeof(Bits) / 4;  // of 32 bits

  DeltaDeviceTensor tensor;
  unsigned blocks;
  bool is_float;
  unsigned mantissa_bits;

  TERSOR_DEVICE unsigned values_of(unsigned block) const {
    const std::uint64_t rest = tensor.count - block * std::uint64_t{kBlock};
    return rest < kBlock ? static_cast<unsigned>(rest) : kBlock;
  }
  TERSOR_DEVICE Bits* values_at(unsigned block) const {
    return reinterpret_cast<Bits*>(tensor.values) + block * std::uint64_t{kBlock};
  }
};

}  // namespace tersor::kernels
