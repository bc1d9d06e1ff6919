// A tile of 1,024 values, encoded or decoded by a warp. A thread encodes 32 values of one block, so
// the thread computes one scale.
#pragma once

#include "kernels/device/instructions.cuh"
#include "kernels/device/noise.cuh"
#include "kernels/device/tiles.cuh"
#include "kernels/quantize/rows.cuh"

#include <tersor/align.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

/// The place of a segment's sections in a payload, in bytes.
template <class Format>
struct QuantizedSections {
  using Layout = typename Format::Layout;

  std::size_t scales, codes;

  template <class Entry>
  TERSOR_DEVICE static QuantizedSections of(const Entry& segment) {
    const Layout layout{segment.count};
    return {segment.offset + layout.scales_offset(), segment.offset + layout.codes_offset()};
  }
  /// The offset of the scale or the codes of value `first`, the first one of a block.
  TERSOR_DEVICE std::size_t scale_of(std::size_t first) const {
    return scales + first / Format::kBlock * sizeof(typename Format::Scale::Stored);
  }
  TERSOR_DEVICE std::size_t codes_of(std::size_t first) const {
    return codes + first * Format::kBits / 8;
  }

  /// Adds the bytes of the codes of a segment's values [first, end) to a sum.
  template <class Sum>
  TERSOR_DEVICE void sum_codes(const Sum& sum, std::size_t first, std::size_t end) const {
    sum.add_bytes(codes_of(first), codes + align_up(ceil_div(end * Format::kBits, 8), 16));
  }
  /// Adds the bytes of the scales. The padding belongs to the segment's last value, and bytes
  /// before the scales to the first value.
  template <class Sum>
  TERSOR_DEVICE void sum_scales(const Sum& sum, std::size_t first, std::size_t end,
                                std::size_t count) const {
    constexpr std::size_t kBefore = align_up(Layout::kFirst, std::size_t{16});
    sum.add_bytes(scale_of(first) - (first == 0 ? kBefore : 0),
                  end == count ? codes : scale_of(end));
  }
};

/// Like block_scale, without branches.
template <class Format>
TERSOR_DEVICE BlockScale tile_scale(std::uint32_t absmax_bits) {
  const bool poisoned = absmax_bits >= kInfinityBits;
  const float q = float_of(absmax_bits) * (1.0f / Format::kLevels);
  const bool codes = !poisoned && q >= kMinScale;
  return {poisoned ? float_of(kNanBits)
          : codes  ? q
                   : 0.0f,
          codes ? normal_reciprocal(q) : 0.0f, poisoned};
}

/// The values of a tile that a thread encodes: rows of kRow consecutive values of type G. Formats
/// with smaller blocks than kBlock encode units.
template <class Format, typename G>
struct EncodeTile {
  static constexpr unsigned kBits = Format::kBits;
  static constexpr unsigned kRow = std::max<unsigned>(16 / sizeof(G), 32 / kBits);
  static constexpr unsigned kRows = kThreadValues / kRow;
  static constexpr unsigned kBlock = std::max<unsigned>(Format::kBlock, 32 * kBits);
  static constexpr unsigned kThreads = kBlock / kThreadValues;  // per block
  static constexpr unsigned kStep = kThreads * kRow;            // from row to row
  static_assert(kTileValues % kBlock == 0 && kWarpThreads % kThreads == 0);

  static constexpr unsigned kRowWords = kRow * kBits / 32;  // of codes
  static constexpr unsigned kStepWords = kStep * kBits / 32;
  static constexpr bool kNarrow = kStepWords < kChecksumColumns;  // several rows per checksum row
  static constexpr unsigned kColumns = kNarrow ? kChecksumColumns / kStepWords : kRowWords;
  static_assert(kNarrow ? kRowWords == 1 : kStepWords == kChecksumColumns);
  using WordLayout =
      ThreadWordLayout<kColumns, kRows * kRowWords / kColumns, kNarrow ? kStepWords : 1, 1>;

  using Raw = RowBytes<kRow * sizeof(G)>;
  using Codes = RowBytes<kRow * kBits / 8>;

  unsigned thread;  // in the warp

  /// Index of a row's first value in the tile.
  TERSOR_DEVICE unsigned index(unsigned row) const {
    return thread / kThreads * kBlock + thread % kThreads * kRow + row * kStep;
  }
  TERSOR_DEVICE bool is_first_of_block() const { return thread % kThreads == 0; }

  /// Returns the largest magnitude of all values of this thread's block, as bits of an f32.
  template <class Warp>
  TERSOR_DEVICE static std::uint32_t of_block(const Warp& warp, std::uint32_t most) {
    TERSOR_UNROLL
    for (unsigned mask = kThreads / 2; mask != 0; mask /= 2) {
      const std::uint32_t other = warp.shuffle_xor(most, mask);
      most = most > other ? most : other;
    }
    return most;
  }

  /// Returns the largest magnitude of a thread's values, as bits of an f32.
  TERSOR_DEVICE static std::uint32_t largest(const Raw (&rows)[kRows]) {
    std::uint32_t most = 0;
    TERSOR_UNROLL
    for (unsigned row = 0; row < kRows; ++row) {
      std::uint32_t word[sizeof(Raw) / 4];
      std::memcpy(word, &rows[row], sizeof word);
      TERSOR_UNROLL
      for (const std::uint32_t pair : word) {
        if constexpr (sizeof(G) == 4)
          most = bits_of(larger_magnitude(float_of(most), float_of(pair)));
        else
          most = larger_magnitudes<G>(most, pair);
      }
    }
    if constexpr (sizeof(G) == 4) {
      return most;
    } else {
      const std::uint32_t low = magnitude_bits(to_f32(G{static_cast<std::uint16_t>(most)}));
      const std::uint32_t high = magnitude_bits(to_f32(G{static_cast<std::uint16_t>(most >> 16)}));
      return low > high ? low : high;
    }
  }
  TERSOR_DEVICE static std::uint32_t largest(const float (&rows)[kRows][kRow]) {
    float most = 0;
    TERSOR_UNROLL
    for (unsigned row = 0; row < kRows; ++row) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) most = larger_magnitude(most, rows[row][i]);
    }
    return bits_of(most);
  }
};

/// The values of a tile that a thread decodes: rows of 16 bytes of type T.
template <class Format, typename T>
struct DecodeTile {
  static constexpr unsigned kBits = Format::kBits;
  static constexpr unsigned kRow = 16 / sizeof(T);
  static constexpr unsigned kRows = kThreadValues / kRow;
  static constexpr unsigned kStep = kWarpThreads * kRow;  // from row to row
  static constexpr unsigned kColumns = std::max(kRow * kBits / 32, 1u);
  using WordLayout = ThreadWordLayout<kColumns, kRows, 1, kStep * kBits / 32 / kChecksumColumns>;
  using Codes = RowBytes<kRow * kBits / 8>;

  unsigned thread;  // in the warp

  TERSOR_DEVICE unsigned index() const { return thread * kRow; }
  TERSOR_DEVICE unsigned own_word() const { return index() * kBits / 32; }

  /// One frame's codes and scales.
  struct Rows {
    Codes codes[kRows];
    float scales[kRows];
  };

  /// Loads the codes from `codes` and the scales from `scales`, the addresses of the tile's first
  /// ones. `segment_scale` belongs to the segment.
  TERSOR_DEVICE void load(const std::byte* codes, const std::byte* scales,
                          typename Format::Scale::SegmentScale segment_scale, Rows& rows) const {
    const std::byte* from = base_address(codes + index() * kBits / 8);
    using Scale = typename Format::Scale;
    const auto* scale = reinterpret_cast<const typename Scale::Stored*>(scales);
    if constexpr (kStep > Format::kBlock) scale += index() / Format::kBlock;
    scale = base_address(scale);
    TERSOR_UNROLL
    for (unsigned row = 0; row < kRows; ++row)
      rows.codes[row] = Codes::template load_from<Load::kInput>(from + row * kStep * kBits / 8);
    TERSOR_UNROLL
    for (unsigned row = 0; row < kRows; ++row) {
      const unsigned block = row * kStep / Format::kBlock;
      const bool shares = row != 0 && block == (row - 1) * kStep / Format::kBlock;
      rows.scales[row] =
          shares ? rows.scales[row - 1] : Scale::value(load_input(scale + block), segment_scale);
    }
  }

  /// The words of the frame that contain this thread's codes. Half of a word counts as a word with
  /// zeros in the other half.
  TERSOR_DEVICE void words_of(const Rows& rows,
                              typename ThreadColumns<WordLayout>::Words& words) const {
    TERSOR_UNROLL
    for (unsigned row = 0; row < kRows; ++row) {
      if constexpr (sizeof(Codes) == 2) {
        std::uint16_t half;
        std::memcpy(&half, &rows.codes[row], sizeof half);
        words[row] = std::uint32_t{half} << thread % 2 * 16;
      } else {
        std::memcpy(words + row * kColumns, &rows.codes[row], sizeof(Codes));
      }
    }
  }
};

}  // namespace tersor::kernels
