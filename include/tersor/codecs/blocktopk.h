/// blocktopk: the k values of largest magnitude in every block of 4,096, with indices in lists of
/// fixed length. Blocks follow DeMo (Peng et al. 2024) and SparseLoCo (Sarfi et al. 2025). Index
/// lists follow Elias 1974 and Fano 1971. Frames can be cut and reduced, so a rank's two-shot
/// traffic does not grow with the number of ranks.
///
/// Payload  scales  f32 for each block; absent if values are bf16
///          high    for each block, bits: bit (i >> l) + j is 1 for its j-th selected index i
///          low     for each block, the low l bits of each index, packed from bit 0
///          values  for each block, 1, 4 or 16 bits per selected value, packed from bit 0
///          each padded to 16 bytes, whole words per block; unused bits are 0.
/// Header   parameters: the density as f64; flags: the type of the values.
/// Selected the k largest magnitudes of a block, ties to the lowest index, never a zero;
///          k = max(1, ceil(density * 4096)) for every block, including a short last block.
/// Error    the values that are not sent; "+ef" keeps them and the rounding error in the residual.
///
/// A block with a NaN, an infinity or a magnitude of at least 2^118 sends NaNs at its first
/// indices. Its residual does not change. Overflows are therefore never hidden.
#pragma once

#include <tersor/align.h>
#include <tersor/codecs/topk.h>
#include <tersor/wire.h>

#include <bit>
#include <cstddef>
#include <cstdint>

namespace tersor {

/// The codec's number in the wire format.
inline constexpr std::uint16_t kBlocktopkCodecId = 9;

/// Encodings of the selected values: signs with a common magnitude (the mean), 4-bit codes with the
/// block's scale, or bf16. The number is stored in the frame's flags from bit kCodecFlagShift on.
enum class BlocktopkValues : std::uint8_t { kSign = 0, kInt4 = 1, kBf16 = 2 };

/// Options of the spec blocktopk[:density=(0, 0.25],values=sign|int4|bf16].
struct BlocktopkOptions {
  double density = 0.01;                            ///< fraction of the values that a block sends
  BlocktopkValues values = BlocktopkValues::kSign;  ///< encoding of the sent values
};

/// The size of one block in each section, in 32-bit words.
struct BlocktopkBlock {
  static constexpr std::size_t kValues = 4096;        ///< values per block
  static constexpr unsigned kIndexBits = 12;          ///< bits of an index in a block
  static constexpr std::size_t kMostSelected = 1024;  ///< k at the largest density
  std::size_t selected;                               ///< k, the capacity
  BlocktopkValues values;                             ///< encoding of the sent values

  /// Computes k from the density.
  constexpr explicit BlocktopkBlock(const BlocktopkOptions& options)
      : selected(topk_selected(kValues, options.density)), values(options.values) {}

  /// Returns l = floor(log2(4096 / k)).
  constexpr unsigned low_bits() const {
    return kIndexBits - static_cast<unsigned>(std::bit_width(selected - 1));
  }
  /// Returns the bits of a sent value.
  constexpr unsigned value_bits() const {
    return values == BlocktopkValues::kSign ? 1 : values == BlocktopkValues::kInt4 ? 4 : 16;
  }
  /// Returns the words of the scale.
  constexpr std::size_t scale_words() const { return values == BlocktopkValues::kBf16 ? 0 : 1; }
  /// Returns the words of the high index bits.
  constexpr std::size_t high_words() const {
    return ceil_div(selected + (kValues >> low_bits()), kWordBits);
  }
  /// Returns the words of the low index bits.
  constexpr std::size_t low_words() const { return ceil_div(selected * low_bits(), kWordBits); }
  /// Returns the words of the sent values.
  constexpr std::size_t value_words() const { return ceil_div(selected * value_bits(), kWordBits); }

 private:
  static constexpr std::size_t kWordBits = 32;
};

/// The section offsets of a segment's blocktopk payload, in bytes.
struct BlocktopkLayout {
  std::size_t count;     ///< values of the segment
  BlocktopkBlock block;  ///< sizes of one block

  /// Returns the number of blocks.
  constexpr std::size_t blocks() const { return ceil_div(count, BlocktopkBlock::kValues); }
  /// Returns the offset of the high index bits.
  constexpr std::size_t high_offset() const { return section_bytes(block.scale_words()); }
  /// Returns the offset of the low index bits.
  constexpr std::size_t low_offset() const {
    return high_offset() + section_bytes(block.high_words());
  }
  /// Returns the offset of the sent values.
  constexpr std::size_t values_offset() const {
    return low_offset() + section_bytes(block.low_words());
  }
  /// Returns the size of the payload.
  constexpr std::size_t bytes() const {
    return values_offset() + section_bytes(block.value_words());
  }

 private:
  constexpr std::size_t section_bytes(std::size_t words_a_block) const {
    return align_up(blocks() * words_a_block * sizeof(std::uint32_t), kSectionAlignment);
  }
};
static_assert(BlocktopkBlock({0.01}).selected == 41 && BlocktopkBlock({0.01}).low_bits() == 6);
static_assert(BlocktopkBlock({1e-9}).low_bits() == 12 && BlocktopkBlock({0.25}).low_bits() == 2);
static_assert(BlocktopkLayout{4096, BlocktopkBlock({0.01})}.bytes() == 16 + 16 + 32 + 16);
static_assert(BlocktopkLayout{16'385, BlocktopkBlock({0.01, BlocktopkValues::kInt4})}.bytes() ==
              32 + 80 + 160 + 128);
static_assert(BlocktopkLayout{4096, BlocktopkBlock({0.25, BlocktopkValues::kBf16})}.bytes() ==
              256 + 256 + 2048);
static_assert(BlocktopkLayout{0, BlocktopkBlock({0.01})}.bytes() == 0);

}  // namespace tersor
