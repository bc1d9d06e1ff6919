// Codes between registers and the bytes of a payload, a row (4 or 8 values) at a time, and the
// random bytes that a row needs. `Format` is Int8Format or Int4Format.
#pragma once

#include "kernels/device/row.cuh"
#include "kernels/device/units.cuh"
#include "kernels/quantize/formulas.h"
#include "kernels/scalar/philox.h"

#include <tersor/modes.h>

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Bytes of a row's codes.
template <class Format, unsigned kRow>
constexpr unsigned kRowCodeBytes = kRow* Format::kBits / 8;

/// Where random bytes come from: none for nearest rounding; a counter for 16 values where the
/// segment begins at a multiple of 512 in its parameter; else one for each value.
enum class NoiseKind : std::uint8_t { kNone, kUnits, kAny };

/// Bytes picked from two words: nibble i of `selector` names byte 0 to 7 of high:low.
TERSOR_DEVICE std::uint32_t byte_permute(std::uint32_t low, std::uint32_t high,
                                         std::uint32_t selector) {
  return __byte_perm(low, high, selector);
}

/// Byte `kByte` of each of four words.
template <unsigned kByte>
TERSOR_DEVICE std::uint32_t gather_bytes(const std::uint32_t* word) {
  constexpr std::uint32_t kPair = kByte | (kByte + 4) << 4;
  return byte_permute(byte_permute(word[0], word[1], kPair), byte_permute(word[2], word[3], kPair),
                      0x5410);
}

/// An integer of at most 22 bits as a float, exactly, without a conversion instruction.
TERSOR_DEVICE float float_of_small(std::int32_t value) {
  return float_of(kNearestBits + static_cast<std::uint32_t>(value)) - kNearestMagic;
}

/// Byte `index` of a word, less `kBias`, as a float: put into the low bits of 2^23 it is added.
template <unsigned kBias>
TERSOR_DEVICE float float_of_byte(std::uint32_t word, unsigned index) {
  return float_of(byte_permute(word, 0x4b000000u, 0x7440u + index)) - (8388608.0f + kBias);
}

/// Codes of a row as the bytes of a payload. `sums` are words of which byte `kByte` holds the code
/// (int8), or codes plus `kBase` (int4).
template <class Format, unsigned kRow, unsigned kByte, std::uint32_t kBase>
TERSOR_DEVICE RowBytes<kRowCodeBytes<Format, kRow>> pack_codes(const std::uint32_t (&sums)[kRow]) {
  RowBytes<kRowCodeBytes<Format, kRow>> row;
  if constexpr (Format::kBits == 8) {
    std::uint32_t word[kRow / 4];
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow / 4; ++i) word[i] = gather_bytes<kByte>(sums + 4 * i);
    static_assert(sizeof word == sizeof row);
    std::memcpy(&row, word, sizeof row);
  } else {
    // Nibbles by Horner's rule, biased by 8 so that none borrows from the next.
    std::uint32_t nibbles = 0;
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i) nibbles = nibbles * 16 + sums[kRow - 1 - i];
    nibbles = (nibbles + (0x88888888u - 0x11111111u * kBase)) ^ 0x88888888u;
    static_assert(sizeof row <= sizeof nibbles);
    std::memcpy(&row, &nibbles, sizeof row);
  }
  return row;
}

/// What the codes of a row stand for, before they are scaled.
template <class Format, unsigned kRow>
TERSOR_DEVICE void unpack_codes(const RowBytes<kRowCodeBytes<Format, kRow>>& row,
                                float (&values)[kRow]) {
  if constexpr (Format::kBits == 8) {
    std::uint32_t word[kRow / 4];
    std::memcpy(word, &row, sizeof row);
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i)
      values[i] = float_of_byte<128>(word[i / 4] ^ 0x80808080u, i % 4);
  } else {
    std::uint32_t nibbles = 0;
    std::memcpy(&nibbles, &row, sizeof row);
    nibbles ^= 0x88888888u;
    const std::uint32_t half[2] = {nibbles & 0x0f0f0f0fu, nibbles >> 4 & 0x0f0f0f0fu};
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i) values[i] = float_of_byte<8>(half[i % 2], i / 2);
  }
}

/// The random bytes of one thread's rows in a unit.
template <NoiseKind kKind, unsigned kRow>
class RowNoise;

template <unsigned kRow>
class RowNoise<NoiseKind::kNone, kRow> {
 public:
  template <class Warp>
  TERSOR_DEVICE RowNoise(const Warp&, std::uint64_t, std::uint64_t, std::uint32_t, std::uint32_t) {}
};

template <unsigned kRow>
class RowNoise<NoiseKind::kAny, kRow> {
 public:
  /// `element`: where the unit begins in its parameter.
  template <class Warp>
  TERSOR_DEVICE RowNoise(const Warp& warp, std::uint64_t element, std::uint64_t key,
                         std::uint32_t step, std::uint32_t parameter)
      : element_(element + warp.thread_rank() * kRow),
        key_(key),
        step_(step),
        parameter_(parameter) {}

  TERSOR_DEVICE std::uint32_t at(unsigned chunk, unsigned index) const {
    return noise_of(element_ + chunk * kChunkValues<kRow> + index, key_, step_, parameter_);
  }

 private:
  std::uint64_t element_, key_;
  std::uint32_t step_, parameter_;
};

template <unsigned kRow>
class RowNoise<NoiseKind::kUnits, kRow> {
 public:
  template <class Warp>
  TERSOR_DEVICE RowNoise(const Warp& warp, std::uint64_t element, std::uint64_t key,
                         std::uint32_t step, std::uint32_t parameter) {
    const std::uint64_t first = element / kNoiseUnit * kNoiseUnitCounters;
    const unsigned thread = warp.thread_rank();
    if constexpr (kRow == 4) {
      const PhiloxWords words = noise_words(first + thread, key, step, parameter);
      TERSOR_UNROLL
      for (unsigned chunk = 0; chunk < 4; ++chunk) word_[chunk][0] = words.word[chunk];
    } else {
      // Threads t and t + 16 own halves of the same two counters: each makes one and gives the
      // other what it does not need itself.
      const bool low = thread < 16;
      const unsigned counter = low ? 2 * thread : 2 * (thread - 16) + 1;
      const PhiloxWords words = noise_words(first + counter, key, step, parameter);
      const std::uint32_t mine[2] = {low ? words.word[0] : words.word[1],
                                     low ? words.word[2] : words.word[3]};
      TERSOR_UNROLL
      for (unsigned chunk = 0; chunk < 2; ++chunk) {
        const std::uint32_t other =
            warp.shuffle_xor(low ? words.word[2 * chunk + 1] : words.word[2 * chunk], 16);
        word_[chunk][0] = low ? mine[chunk] : other;
        word_[chunk][1] = low ? other : mine[chunk];
      }
    }
  }

  TERSOR_DEVICE std::uint32_t at(unsigned chunk, unsigned index) const {
    return word_[chunk][index / 4] >> (8 * (index % 4)) & 0xffu;
  }

 private:
  std::uint32_t word_[kUnitChunks<kRow>][kRow / 4];
};

}  // namespace tersor::kernels
