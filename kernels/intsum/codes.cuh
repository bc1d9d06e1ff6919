// Conversion of a row of codes (4 or 8) between registers and raw 8-bit, 16-bit or 32-bit
// accumulators.
#pragma once

#include "kernels/device/row.cuh"
#include "kernels/intsum/formulas.h"
#include "kernels/quantize/rows.cuh"

#include <cstdint>
#include <cstring>

namespace tersor::kernels {

/// The position of a row's raw values. Rows begin at even values.
template <unsigned kRow>
struct CodeRow {
  void* codes;  // of the segment
  RowPosition position;

  /// True if a row of `Accumulator`s can be moved as a whole.
  template <typename Accumulator>
  TERSOR_DEVICE bool is_whole() const {
    return position.left >= kRow && is_aligned_for<Accumulator, kRow>(codes);
  }
  template <typename T>
  TERSOR_DEVICE T* at(std::size_t index) const {
    return static_cast<T*>(codes) + index;
  }
};

/// Stores 8-bit codes from the low bytes of words.
template <unsigned kRow>
TERSOR_DEVICE void store_bytes(const std::uint32_t (&codes)[kRow], const CodeRow<kRow>& row) {
  auto* to = row.template at<std::uint8_t>(row.position.first);
  if (row.template is_whole<std::int8_t>()) return pack_bytes<0>(codes).store_to(to);
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRow; ++i)
    if (i < row.position.left) store(to + i, static_cast<std::uint8_t>(codes[i]));
}

/// Stores words with the codes of `kValuesPerWord` values each.
template <unsigned kValuesPerWord, unsigned kWords, unsigned kRow>
TERSOR_DEVICE void store_words(const std::uint32_t (&words)[kWords], bool is_whole,
                               const CodeRow<kRow>& row) {
  auto* to = row.template at<std::uint32_t>(row.position.first / kValuesPerWord);
  if (is_whole) {
    RowBytes<sizeof words> bytes;
    std::memcpy(&bytes, words, sizeof words);
    return bytes.store_to(to);
  }
  TERSOR_UNROLL
  for (unsigned i = 0; i < kWords; ++i)
    if (i * kValuesPerWord < row.position.left) store(to + i, words[i]);
}

/// Stores a row of codes. Codes after the segment's end are 0.
template <unsigned kRow>
TERSOR_DEVICE void store_codes(const std::uint32_t (&codes)[kRow], AccumulatorBits accumulator_bits,
                               const CodeRow<kRow>& row) {
  if (accumulator_bits == AccumulatorBits::k8) return store_bytes(codes, row);
  if (accumulator_bits == AccumulatorBits::k32)
    return store_words<1>(codes, row.template is_whole<std::uint32_t>(), row);
  std::uint32_t pairs[kRow / 2];
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRow / 2; ++i) pairs[i] = codes[2 * i] + (codes[2 * i + 1] << 16);
  store_words<2>(pairs, row.template is_whole<std::uint16_t>(), row);
}

/// Loads sums of 8-bit codes. Values after the segment's end are 0.
template <unsigned kRow>
TERSOR_DEVICE void load_bytes(const CodeRow<kRow>& row, float (&sums)[kRow]) {
  const auto* from = row.template at<const std::int8_t>(row.position.first);
  if (row.template is_whole<std::int8_t>())
    return RowCodes<Int8Format>::values<kRow>(
        RowBytes<kRow>::template load_from<Load::kInput>(from), sums);
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRow; ++i)
    sums[i] = i < row.position.left ? float_of_small(load(from + i)) : 0.0f;
}

/// Loads words with the codes of `kValuesPerWord` values each. Words after the segment's end are 0.
template <unsigned kValuesPerWord, unsigned kWords, unsigned kRow>
TERSOR_DEVICE void load_words(const CodeRow<kRow>& row, bool is_whole,
                              std::uint32_t (&words)[kWords]) {
  const auto* from = row.template at<const std::uint32_t>(row.position.first / kValuesPerWord);
  if (is_whole) {
    const auto bytes = RowBytes<sizeof words>::template load_from<Load::kInput>(from);
    std::memcpy(words, &bytes, sizeof words);
    return;
  }
  TERSOR_UNROLL
  for (unsigned i = 0; i < kWords; ++i)
    words[i] = i * kValuesPerWord < row.position.left ? load(from + i) : 0;
}

template <unsigned kRow>
TERSOR_DEVICE void load_pairs(const CodeRow<kRow>& row, float (&sums)[kRow]) {
  std::uint32_t pairs[kRow / 2];
  load_words<2>(row, row.template is_whole<std::uint16_t>(), pairs);
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRow; ++i) {
    const std::uint32_t halves = pairs[i / 2] + kPairOffset;
    sums[i] = float_of_small(static_cast<std::int32_t>(halves >> (i % 2 * 16) & 0xffffu) - 0x8000);
  }
}

/// Loads the sums of a row as floats.
template <unsigned kRow>
TERSOR_DEVICE void load_sums(const CodeRow<kRow>& row, AccumulatorBits accumulator_bits,
                             float (&sums)[kRow]) {
  if (accumulator_bits == AccumulatorBits::k8) return load_bytes(row, sums);
  if (accumulator_bits == AccumulatorBits::k16) return load_pairs(row, sums);
  std::uint32_t words[kRow];
  load_words<1>(row, row.template is_whole<std::uint32_t>(), words);
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRow; ++i)
    sums[i] = static_cast<float>(static_cast<std::int32_t>(words[i]));
}

}  // namespace tersor::kernels
