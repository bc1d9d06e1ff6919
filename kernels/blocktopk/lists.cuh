// A block of 4,096 values on a device: the values and their lists in a warp's shared memory. A warp
// builds the lists there. A warp also reads the lists of frames, and trusts no byte of them.
#pragma once

#include "kernels/blocktopk/formulas.h"
#include "kernels/device/group.cuh"
#include "kernels/device/memory.cuh"
#include "kernels/device/units.cuh"

#include <tersor/codecs/blocktopk.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

constexpr unsigned kBlocktopkValues = BlocktopkBlock::kValues;
/// The most words of a block's lists, and of those with signs: the scale, the upper and the lower
/// index bits, and the codes.
constexpr unsigned kBlocktopkWords = 1 + 64 + 64 + BlocktopkBlock::kMostSelected / 2;
constexpr unsigned kBlocktopkSignWords = 1 + 64 + 64 + BlocktopkBlock::kMostSelected / 32;

/// A block's shape in the form used by kernels.
struct BlocktopkShape {
  std::uint32_t selected;
  std::uint32_t low_bits;
  std::uint32_t value_bits;
  std::uint32_t words[4];  // words of each section: scales, high, low, values

  /// The positions of sections among the words of a block. high() is 0 without a scale.
  TERSOR_DEVICE std::uint32_t high() const { return words[0]; }
  TERSOR_DEVICE std::uint32_t low() const { return high() + words[1]; }
  TERSOR_DEVICE std::uint32_t codes() const { return low() + words[2]; }
  TERSOR_DEVICE std::uint32_t all() const { return codes() + words[3]; }

  static BlocktopkShape of(const BlocktopkBlock& block) {
    return {static_cast<std::uint32_t>(block.selected),
            block.low_bits(),
            block.value_bits(),
            {static_cast<std::uint32_t>(block.scale_words()),
             static_cast<std::uint32_t>(block.high_words()),
             static_cast<std::uint32_t>(block.low_words()),
             static_cast<std::uint32_t>(block.value_words())}};
  }
};

/// The positions of block `index`'s part of each section, in words from the start of the segment's
/// sections. A segment with `blocks` blocks has fewer than 2^32 words.
struct BlocktopkOffsets {
  std::uint32_t begin[4];
  unsigned padding[4];  // words after a segment's last block

  TERSOR_DEVICE BlocktopkOffsets(const BlocktopkShape& shape, std::size_t blocks,
                                 std::size_t index) {
    std::size_t section = 0;
    TERSOR_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      const std::size_t words = blocks * shape.words[i];
      begin[i] = static_cast<std::uint32_t>(section + index * shape.words[i]);
      padding[i] = index + 1 == blocks ? static_cast<unsigned>(-words % 4) : 0;
      section += (words + 3) / 4 * 4;
    }
  }

  /// Returns the position of word `word` of the block's sections, counted through all sections.
  TERSOR_DEVICE std::uint32_t position(const BlocktopkShape& shape, std::uint32_t word) const {
    std::uint32_t position = begin[0] + word, first = 0;
    TERSOR_UNROLL
    for (unsigned i = 1; i < 4; ++i) {
      first += shape.words[i - 1];
      position = word < first ? position : begin[i] + (word - first);
    }
    return position;
  }
};

/// Calls `visitor(BlocktopkKind<...>{})` with the type of the values.
template <BlocktopkValues kValues>
using BlocktopkKind = std::integral_constant<BlocktopkValues, kValues>;
template <typename Visitor>
TERSOR_DEVICE void visit_kind(unsigned value_bits, const Visitor& visitor) {
  if (value_bits == 1) return visitor(BlocktopkKind<BlocktopkValues::kSign>{});
  if (value_bits == 4) return visitor(BlocktopkKind<BlocktopkValues::kInt4>{});
  visitor(BlocktopkKind<BlocktopkValues::kBf16>{});
}

/// The values of a block in shared memory, also as 8 units of 512 values (units.cuh).
class BlocktopkSlot {
 public:
  static constexpr unsigned kRow = 4;
  static constexpr unsigned kUnits = kBlocktopkValues / kUnitValues;
  using Rows = kernels::Rows<kRow>;  // a thread's values of a unit

  TERSOR_DEVICE float get(unsigned index) const { return load(values_ + index); }
  TERSOR_DEVICE void set(unsigned index, float value) { store(values_ + index, value); }
  /// Move rows that begin at value `first`.
  TERSOR_DEVICE void get_rows(unsigned first, Rows& rows) const {
    load_rows<Load::kAny>(values_ + first, UnitPosition<kRow>{0, kUnitValues, 0}, true, rows);
  }
  TERSOR_DEVICE void set_rows(unsigned first, const Rows& rows) {
    store_rows(rows, values_ + first, UnitPosition<kRow>{0, kUnitValues, 0}, true);
  }
  /// Calls visit(i, index, value) for the 16 values of a row, which begins at value `first`.
  template <class Visit>
  TERSOR_DEVICE void for_each_in_group(unsigned first, const Visit& visit) const {
    Rows rows;
    get_rows(first, rows);
    TERSOR_UNROLL
    for (unsigned i = 0; i < sizeof rows / sizeof(float); ++i)
      visit(i, first + index_in_group(i), rows[i / kRow][i % kRow]);
  }
  TERSOR_DEVICE static unsigned index_in_group(unsigned i) {
    return i / kRow * kChunkValues<kRow> + i % kRow;
  }
  /// Starts to copy rows from `from`. See async_copy.
  TERSOR_DEVICE void fetch_rows(unsigned first, const float* from) {
    TERSOR_UNROLL
    for (unsigned i = 0; i < kUnitValues; i += kChunkValues<kRow>)
      async_copy<kRow * sizeof(float)>(values_ + first + i, from + i);
  }

 private:
  alignas(kRow * sizeof(float)) float values_[kBlocktopkValues];
};

/// A block of values of a segment.
struct BlocktopkUnit {
  std::size_t number;          // among the blocks of all segments
  std::uint64_t offset;        // of the segment's sections
  std::size_t first;           // index of the first value in the segment
  std::size_t index;           // index among the segment's blocks
  std::size_t values, blocks;  // of the segment

  template <class Entry>
  TERSOR_DEVICE BlocktopkUnit(const Entry& segment, std::uint32_t unit)
      : number(unit),
        offset(segment.offset),
        first(std::size_t{unit - segment.first_unit} * kBlocktopkValues),
        index(unit - segment.first_unit),
        values(segment.count),
        blocks((segment.count + kBlocktopkValues - 1) / kBlocktopkValues) {}

  TERSOR_DEVICE unsigned count() const {
    return values - first < kBlocktopkValues ? static_cast<unsigned>(values - first)
                                             : kBlocktopkValues;
  }
  /// Calls visit(first, position) for the units of 512 values: the index of the thread's first
  /// value in the block, and the position in the segment.
  template <class Visit>
  TERSOR_DEVICE void for_each_unit(unsigned thread, const Visit& visit) const {
    TERSOR_KEEP_LOOP
    for (unsigned at = 0; at < kBlocktopkValues; at += kUnitValues) {
      const std::size_t begin = first + at, end = values > begin ? values : begin;
      visit(at + thread * BlocktopkSlot::kRow,
            UnitPosition<BlocktopkSlot::kRow>{begin, end, thread});
    }
  }
};

/// The lists that a warp writes. The magnitudes of signs follow the words.
class BlocktopkOutputLists {
 public:
  TERSOR_DEVICE void set(unsigned word, std::uint32_t value) { words_.set(word, value); }
  TERSOR_DEVICE float magnitude(unsigned index) const {
    return float_of(words_.get(kBlocktopkSignWords + index));
  }
  TERSOR_DEVICE void set_magnitude(unsigned index, float value) {
    set(kBlocktopkSignWords + index, bits_of(value));
  }

  /// Clears the words. Contains barriers, because the memory has other uses.
  TERSOR_DEVICE void clear(const DeviceWarp& warp, const BlocktopkShape& shape) {
    warp.sync();
    for (unsigned i = warp.thread_rank(); i < shape.all(); i += kWarpThreads) set(i, 0);
    warp.sync();
  }

  /// Adds selected value number `index`. Any thread may call, once per number.
  TERSOR_DEVICE void put(const BlocktopkShape& shape, unsigned index, unsigned value_index,
                         std::uint32_t code) {
    const unsigned bit = (value_index >> shape.low_bits) + index;
    words_.add(shape.high() + bit / 32, 1u << bit % 32);
    const unsigned first = index * shape.low_bits, low = shape.low() + first / 32;
    const std::uint64_t bits = std::uint64_t{value_index & ((1u << shape.low_bits) - 1)}
                               << first % 32;
    words_.add(low, static_cast<std::uint32_t>(bits));
    if ((bits >> 32) != 0) words_.add(low + 1, static_cast<std::uint32_t>(bits >> 32));
    const unsigned at = index * shape.value_bits;
    words_.add(shape.codes() + at / 32, code << at % 32);
  }

  /// Stores the words to a segment's sections, and zeros to the padding. Call after a barrier.
  TERSOR_DEVICE void store_to(unsigned thread, const BlocktopkShape& shape, std::uint32_t* sections,
                              const BlocktopkOffsets& offsets) const {
    for (unsigned i = thread; i < shape.all(); i += kWarpThreads)
      store(sections + offsets.position(shape, i), words_.get(i));
    TERSOR_UNROLL
    for (unsigned i = 0; i < 4; ++i)
      if (thread < offsets.padding[i])
        store(sections + offsets.begin[i] + shape.words[i] + thread, std::uint32_t{0});
  }

 private:
  static constexpr unsigned kSigns = kBlocktopkSignWords + BlocktopkBlock::kMostSelected;
  SharedArray<std::uint32_t, std::max(kBlocktopkWords, kSigns)> words_;
};

}  // namespace tersor::kernels
