// The lists of a block of 4,096 values on a device: positions, construction and reading. A block of
// threads builds the lists in shared memory. A block of threads also reads a frame's lists, and
// trusts no byte of the frame.
#pragma once

#include "kernels/blocktopk/formulas.h"
#include "kernels/device/group.cuh"
#include "kernels/device/memory.cuh"

#include <tersor/codecs/blocktopk.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

constexpr unsigned kBlocktopkThreads = 256;
constexpr unsigned kBlocktopkValues = BlocktopkBlock::kValues;
constexpr unsigned kBlocktopkHighWords = 64;  // maximum per block
constexpr unsigned kBlocktopkLowWords = 64;
constexpr unsigned kBlocktopkCodeWords = BlocktopkBlock::kMostSelected / 2;

/// A block's shape in the form used by kernels.
struct BlocktopkShape {
  std::uint32_t selected;
  std::uint32_t low_bits;
  std::uint32_t value_bits;
  std::uint32_t words[4];  // words of each section: scales, high, low, values

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

/// The lists that a block of threads writes.
struct BlocktopkWritten {
  SharedArray<std::uint32_t, kBlocktopkHighWords> high;
  SharedArray<std::uint32_t, kBlocktopkLowWords> low;
  SharedArray<std::uint32_t, kBlocktopkCodeWords> codes;

  /// Clears the lists. A barrier must follow.
  template <class Block>
  TERSOR_DEVICE void clear(const Block& block) {
    for (unsigned i = block.thread_rank(); i < kBlocktopkCodeWords; i += block.threads()) {
      codes.set(i, 0);
      if (i < kBlocktopkHighWords) high.set(i, 0);
      if (i < kBlocktopkLowWords) low.set(i, 0);
    }
  }

  /// Adds selected value number `index`. Any thread may call, once per number.
  TERSOR_DEVICE void put(const BlocktopkShape& shape, unsigned index, unsigned value_index,
                         std::uint32_t code) {
    const unsigned bit = (value_index >> shape.low_bits) + index;
    high.add(bit / 32, 1u << bit % 32);
    put_bits(low, index * shape.low_bits, value_index & ((1u << shape.low_bits) - 1));
    put_bits(codes, index * shape.value_bits, code);
  }

  /// Stores the lists to a segment's sections, and zeros to the padding. Call after a barrier.
  template <class Block>
  TERSOR_DEVICE void store_to(const Block& block, const BlocktopkShape& shape,
                              std::uint32_t scale_bits, std::uint32_t* sections,
                              const BlocktopkOffsets& offsets) const {
    const auto store_section = [&](unsigned section, const auto& word_of) {
      const unsigned words = shape.words[section], end = words + offsets.padding[section];
      for (unsigned i = block.thread_rank(); i < end; i += block.threads())
        store(sections + offsets.begin[section] + i, i < words ? word_of(i) : std::uint32_t{0});
    };
    store_section(0, [&](unsigned) { return scale_bits; });
    store_section(1, [&](unsigned i) { return high.get(i); });
    store_section(2, [&](unsigned i) { return low.get(i); });
    store_section(3, [&](unsigned i) { return codes.get(i); });
  }

 private:
  template <class Array>
  TERSOR_DEVICE static void put_bits(Array& words, unsigned first, std::uint32_t number) {
    const std::uint64_t bits = std::uint64_t{number} << first % 32;
    if (static_cast<std::uint32_t>(bits) != 0)
      words.add(first / 32, static_cast<std::uint32_t>(bits));
    if ((bits >> 32) != 0) words.add(first / 32 + 1, static_cast<std::uint32_t>(bits >> 32));
  }
};

/// The selected values of one payload's block that this thread reads. Each lane of a warp handles
/// one bit of each `high` word of the warp.
class BlocktopkRead {
 public:
  static constexpr unsigned kMost = kBlocktopkHighWords * kWarpThreads / kBlocktopkThreads;

  /// `count` is the number of values of the block. All lanes of a warp must call the constructor.
  template <class Block>
  TERSOR_DEVICE BlocktopkRead(const Block& block, const BlocktopkShape& shape,
                              const std::uint32_t* sections, const BlocktopkOffsets& offsets,
                              unsigned count)
      : shape_(shape), low_(sections + offsets.begin[2]), codes_(sections + offsets.begin[3]) {
    if (shape.words[0] != 0) scale_ = float_of(load_input(sections + offsets.begin[0]));
    const auto warp = block.warp();
    const unsigned lane = warp.thread_rank();
    const std::uint32_t* high = sections + offsets.begin[1];
    const std::uint32_t first = lane < shape.words[1] ? load_input(high + lane) : 0;
    const std::uint32_t second = lane + 32 < shape.words[1] ? load_input(high + lane + 32) : 0;
    is_sound_ = warp.add(count_bits(first) + count_bits(second)) <= shape.selected;
    if (!is_sound_) return;
    TERSOR_UNROLL
    for (unsigned i = 0; i < kMost; ++i) {
      const unsigned word = block.warp_rank() + i * Block::warps();
      if (word >= shape.words[1]) break;
      const std::uint32_t before = warp.add((lane < word ? count_bits(first) : 0) +
                                            (lane + 32 < word ? count_bits(second) : 0));
      const std::uint32_t bits = warp.shuffle(word < 32 ? first : second, word % 32);
      const std::uint32_t previous = warp.shuffle(word <= 32 ? first : second, (word + 31) % 32);
      const std::uint32_t follow = bits << 1 | (word == 0 ? 0 : previous >> 31);
      if ((bits >> lane & 1u) != 0)
        look_at(i, 32 * word + lane, before + count_bits(bits & ((1u << lane) - 1)),
                (follow >> lane & 1u) != 0, count);
    }
  }

  /// True if the values read by this thread are valid.
  TERSOR_DEVICE bool is_sound() const { return is_sound_; }

  /// Calls visit(index, value) for each selected value of this thread.
  template <BlocktopkValues kValues, class Visit>
  TERSOR_DEVICE void for_each(const Visit& visit) const {
    TERSOR_UNROLL
    for (unsigned i = 0; i < kMost; ++i)
      if (index_[i] != kNone)
        visit(value_index_[i],
              blocktopk_value<kValues>(
                  bits_at(codes_, index_[i] * shape_.value_bits, shape_.value_bits), scale_));
  }

 private:
  static constexpr std::uint32_t kNone = ~0u;

  /// Reads selected value number `index`, whose bit is `bit`. The flag `follows` is true if the
  /// previous bit is also set. If true, both values have equal upper index bits.
  TERSOR_DEVICE void look_at(unsigned i, unsigned bit, unsigned index, bool follows,
                             unsigned count) {
    const std::uint32_t low = low_of(index);
    index_[i] = index;
    value_index_[i] = (bit - index) << shape_.low_bits | low;
    is_sound_ &= value_index_[i] < count && (!follows || low_of(index - 1) < low);
  }

  TERSOR_DEVICE std::uint32_t low_of(unsigned index) const {
    return bits_at(low_, index * shape_.low_bits, shape_.low_bits);
  }

  TERSOR_DEVICE static std::uint32_t bits_at(const std::uint32_t* words, unsigned first,
                                             unsigned count) {
    std::uint64_t bits = load_input(words + first / 32);
    if (first % 32 + count > 32) bits |= std::uint64_t{load_input(words + first / 32 + 1)} << 32;
    return static_cast<std::uint32_t>(bits >> first % 32) & ((1u << count) - 1);
  }

  const BlocktopkShape& shape_;
  const std::uint32_t* low_;
  const std::uint32_t* codes_;
  float scale_ = 0;
  bool is_sound_;
  std::uint32_t index_[kMost] = {kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone};
  std::uint32_t value_index_[kMost] = {};
};
static_assert(BlocktopkRead::kMost == 8);

}  // namespace tersor::kernels
