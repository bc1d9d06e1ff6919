// Codes between registers and the bytes of a payload, a row (4 or 8 values) at a time: what formats
// are made of on devices.
#pragma once

#include "kernels/device/noise.cuh"
#include "kernels/device/row.cuh"
#include "kernels/quantize/formulas.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Bytes of a row's codes.
template <class Format, unsigned kRow>
constexpr unsigned kRowCodeBytes = kRow* Format::kBits / 8;

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

/// Bytes of a row from byte `kByte` of each word.
template <unsigned kByte, unsigned kRow>
TERSOR_DEVICE RowBytes<kRow> pack_bytes(const std::uint32_t (&words)[kRow]) {
  std::uint32_t word[kRow / 4];
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRow / 4; ++i) word[i] = gather_bytes<kByte>(words + 4 * i);
  RowBytes<kRow> row;
  static_assert(sizeof word == sizeof row);
  std::memcpy(&row, word, sizeof row);
  return row;
}

/// What a format computes on a device, a row at a time; each specialises it:
///   RowBytes code(p, scale, noise, chunk, decoded)    codes, and what they decode to
///   void values(row, values)                          what codes stand for, before they are scaled
template <class Format>
struct RowCodes;

/// What words hold beside a code, where it begins at byte `kByte` of a sum.
template <unsigned kByte>
constexpr std::uint32_t kSumBase = kByte == 0 ? kNearestBits : kStochasticBits >> 8;

/// Codes that are whole numbers. RowCodes<Format>::pack<kByte>(words) gets them from sums, where
/// they begin at byte kByte, or if RowCodes<Format>::kShifted from words in which they begin at bit
/// 0.
template <class Format>
struct WholeRowCodes {
  template <NoiseKind kKind, unsigned kRow>
  TERSOR_DEVICE static auto code(const float (&p)[kRow], const BlockScale& scale,
                                 const RowNoise<kKind, kRow>& noise, unsigned chunk,
                                 float (&decoded)[kRow]) {
    constexpr unsigned kByte = kKind == NoiseKind::kNone ? 0 : 1;
    std::uint32_t words[kRow];
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i) {
      if constexpr (kKind == NoiseKind::kNone) {
        const float sum = nearest_sum(p[i], scale.inverse);
        decoded[i] = nearest_value(sum, scale.scale);
        words[i] = bits_of(sum);
      } else {
        const std::uint32_t sum =
            bits_of(fused_multiply_add(p[i], scale.inverse, kStochasticMagic)) + noise.at(chunk, i);
        const std::uint32_t code = sum >> 8;  // plus kSumBase
        decoded[i] =
            (float_of(code + (kNearestBits - kSumBase<kByte>)) - kNearestMagic) * scale.scale;
        words[i] = RowCodes<Format>::kShifted ? code : sum;
      }
    }
    return RowCodes<Format>::template pack<kByte>(words);
  }
};

}  // namespace tersor::kernels
