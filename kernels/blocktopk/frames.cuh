// Adds the lists of frames to a block of values in a warp's shared memory. The lists of all frames
// are copied there at once, while the warp processes the block before.
#pragma once

#include "kernels/blocktopk/lists.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Words of lists in shared memory: of one block with the longest lists, or of one block of 44
/// frames with a density of 1 % and signs.
constexpr unsigned kBlocktopkStaged = 672;
static_assert(kBlocktopkStaged >= kBlocktopkWords);

using BlocktopkStaged = SharedArray<std::uint32_t, kBlocktopkStaged>;

template <class Table, class List>
struct BlocktopkFrames {
  const Table& table;
  const List& list;
  const BlocktopkShape& shape;
  float factor;
  BlocktopkStaged& staged;
  bool is_valid;  // the frames' headers
  DeviceWarp warp = {};

  /// Starts to copy the lists of a block of values, unless `unit` is too large.
  TERSOR_DEVICE void start(std::size_t unit) const {
    if (!is_valid || unit >= table.units) return;
    const auto number = static_cast<std::uint32_t>(unit);
    copy(BlocktopkUnit(table.find(number), number), 0);
  }

  /// Adds the lists of all frames in order, and starts to copy the lists of block `next`. Returns
  /// false if a frame is not valid, and reports invalid indices. Contains barriers.
  TERSOR_DEVICE bool add(std::uint32_t segment, const BlocktopkUnit& unit, std::size_t next,
                         BlocktopkSlot& slot) const {
    const unsigned at_once = kBlocktopkStaged / shape.all();
    bool valid = is_valid;
    TERSOR_KEEP_LOOP
    for (unsigned index = 0, at = 0; valid && index < list.frames; ++index, ++at) {
      if (at == at_once) {
        warp.sync();
        copy(unit, index);
        at = 0;
      }
      async_wait();
      warp.sync();
      visit_kind(shape.value_bits, [&]<BlocktopkValues kValues>(BlocktopkKind<kValues>) {
        valid = add_values<kValues>(at * shape.all(), unit.count(), slot);
      });
      if (!valid && warp.thread_rank() == 0) list.report(index, FrameFault::kIndices, segment);
    }
    warp.sync();
    start(next);
    return valid;
  }

 private:
  /// Starts to copy as many frames' lists as fit.
  TERSOR_DEVICE void copy(const BlocktopkUnit& unit, unsigned first) const {
    const BlocktopkOffsets offsets(shape, unit.blocks, unit.index);
    TERSOR_KEEP_LOOP
    for (unsigned word = warp.thread_rank(); word < shape.all(); word += kWarpThreads) {
      const std::size_t at =
          unit.offset + std::size_t{offsets.position(shape, word)} * sizeof(std::uint32_t);
      TERSOR_UNROLL_4
      for (unsigned index = first, to = word; index < list.frames && to < kBlocktopkStaged;
           ++index, to += shape.all())
        staged.fetch(to, reinterpret_cast<const std::uint32_t*>(list.payload(index) + at));
    }
  }

  /// Each thread handles one bit of each word of `high`.
  template <BlocktopkValues kValues>
  TERSOR_DEVICE bool add_values(unsigned lists, unsigned count, BlocktopkSlot& slot) const {
    constexpr unsigned kBits = BlocktopkBlock({.values = kValues}).value_bits();
    const unsigned thread = warp.thread_rank(), high = lists + shape.high();
    const unsigned low = lists + shape.low(), codes = lists + shape.codes();
    const float scale = shape.words[0] == 0 ? 0.0f : float_of(staged.get(lists));
    unsigned before = 0;  // values of the words before
    std::uint32_t previous = 0, previous_low = 0;
    TERSOR_KEEP_LOOP
    for (unsigned word = 0; word < shape.words[1]; ++word) {
      const std::uint32_t bits = staged.get(high + word);
      const bool selected = (bits >> thread & 1u) != 0;
      const unsigned index = before + count_bits(bits & ((1u << thread) - 1));
      before += count_bits(bits);
      if (before > shape.selected) return false;
      const std::uint32_t own_low = selected ? low_of(low, index) : 0;
      // Values at neighbouring bits have equal upper index bits.
      const bool follows = ((bits << 1 | previous >> 31) >> thread & 1u) != 0;
      const std::uint32_t other_low =
          warp.shuffle(thread == kWarpThreads - 1 ? previous_low : own_low, thread - 1);
      const unsigned value_index = (32 * word + thread - index) << shape.low_bits | own_low;
      const bool is_valid = value_index < count && (!follows || other_low < own_low);
      if (warp.ballot(selected && !is_valid) != 0) return false;
      if (selected) {
        const unsigned first = index * kBits;
        const std::uint32_t code = staged.get(codes + first / 32) >> first % 32;
        const float value = blocktopk_value<kValues>(code & ((1u << kBits) - 1), scale);
        slot.set(value_index, slot.get(value_index) + value * factor);
      }
      previous = bits;
      previous_low = own_low;
    }
    return true;
  }

  /// Reads a word more than necessary, which exists, because codes follow.
  TERSOR_DEVICE std::uint32_t low_of(unsigned low, unsigned index) const {
    const unsigned first = index * shape.low_bits, word = low + first / 32;
    const std::uint64_t bits = std::uint64_t{staged.get(word + 1)} << 32 | staged.get(word);
    return static_cast<std::uint32_t>(bits >> first % 32) & ((1u << shape.low_bits) - 1);
  }
};

}  // namespace tersor::kernels
