// Conversion between codes in registers and the bytes of a payload, one row (4 or 8 values) at a
// time. The formats' device code builds on this file.
#pragma once

#include "kernels/device/instructions.cuh"
#include "kernels/device/noise.cuh"
#include "kernels/device/row.cuh"
#include "kernels/quantize/formulas.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Bytes of codes per row.
template <class Format, unsigned kRow>
constexpr unsigned kRowCodeBytes = kRow* Format::kBits / 8;

/// Returns the number of a segment, from the largest magnitude at the start of the segment's
/// sections.
template <class Format>
TERSOR_DEVICE typename Format::Scale::SegmentScale segment_scale_of(
    [[maybe_unused]] const std::byte* sections) {
  float largest = 0;
  if constexpr (kHasSegmentScale<Format>) largest = load(reinterpret_cast<const float*>(sections));
  return Format::Scale::SegmentScale::of(largest);
}

/// Returns byte `kByte` of each of four words.
template <unsigned kByte>
TERSOR_DEVICE std::uint32_t gather_bytes(const std::uint32_t* word) {
  constexpr std::uint32_t kPair = kByte | (kByte + 4) << 4;
  return select_bytes(select_bytes(word[0], word[1], kPair), select_bytes(word[2], word[3], kPair),
                      0x5410);
}

/// Converts an integer of at most 22 bits to float, exactly and without a conversion instruction.
TERSOR_DEVICE float float_of_small(std::int32_t value) {
  return float_of(kNearestBits + static_cast<std::uint32_t>(value)) - kNearestMagic;
}

/// Returns byte `index` of a word, minus `kBias`, as a float. The byte becomes the low bits of
/// 2^23.
template <unsigned kBias>
TERSOR_DEVICE float float_of_byte(std::uint32_t word, unsigned index) {
  return float_of(select_bytes(word, 0x4b000000u, 0x7440u + index)) - (8388608.0f + kBias);
}

/// Returns byte `kByte` of each word as a row.
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

/// The device code of a format, one row at a time. Each format specialises this template:
///   RowBytes code(p, scale, noise, chunk, decoded)    returns codes, sets `decoded` to their
///   values void values(row, values)                          sets `values` to the unscaled values
///   of codes
template <class Format>
struct RowCodes;

/// The constant in the word of a code, for a code that begins at byte `kByte` of a sum.
template <unsigned kByte>
constexpr std::uint32_t kSumBase = kByte == 0 ? kNearestBits : kStochasticBits >> 8;

/// Integer codes. RowCodes<Format>::pack<kByte>(words) extracts the codes from sums, where a code
/// begins at byte kByte. If RowCodes<Format>::kShifted is true, the codes begin at bit 0 of each
/// word.
template <class Format>
struct IntegerRowCodes {
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
