// The lists of one block: selected indices and codes, packed into and unpacked from 32-bit words.
#pragma once

#include <tersor/codecs/blocktopk.h>

#include <hwy/base.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// The sent values of a block, in ascending order of index.
struct BlocktopkSelected {
  std::size_t count = 0;
  std::uint16_t index[BlocktopkBlock::kMostSelected];
  std::uint16_t code[BlocktopkBlock::kMostSelected];
};

/// Packs numbers of `bits` bits each, at most 16 bits.
class BitWriter {
 public:
  BitWriter(std::uint32_t* words, unsigned bits) : words_(words), bits_(bits) {}

  void put(std::uint32_t number) {
    pending_ |= std::uint64_t{number} << fill_;
    fill_ += bits_;
    if (fill_ >= 32) flush_word();
  }

  /// Fills with zeros up to `end`.
  void finish(std::uint32_t* end) {
    if (fill_ != 0) flush_word();
    std::fill(words_, end, 0u);
  }

 private:
  void flush_word() {
    *words_++ = static_cast<std::uint32_t>(pending_);
    pending_ >>= 32;
    fill_ -= std::min(fill_, 32u);
  }

  std::uint32_t* words_;
  const unsigned bits_;
  std::uint64_t pending_ = 0;
  unsigned fill_ = 0;
};

/// Unpacks numbers written by BitWriter. Never reads a word after the last number.
class BitReader {
 public:
  BitReader(const std::uint32_t* words, unsigned bits) : words_(words), bits_(bits) {}

  std::uint32_t next() {
    if (fill_ < bits_) {
      pending_ |= std::uint64_t{*words_++} << fill_;
      fill_ += 32;
    }
    const auto number = static_cast<std::uint32_t>(pending_) & ((1u << bits_) - 1);
    pending_ >>= bits_;
    fill_ -= bits_;
    return number;
  }

 private:
  const std::uint32_t* words_;
  const unsigned bits_;
  std::uint64_t pending_ = 0;
  unsigned fill_ = 0;
};

/// Calls visit(index) for each selected index of a block, in order. Invalid lists may give any
/// index.
template <typename Visitor>
HWY_INLINE void for_each_index(const std::uint32_t* high, const std::uint32_t* low,
                               const BlocktopkBlock& block, const Visitor& visit) {
  const std::size_t words = block.high_words();
  const unsigned low_bits = block.low_bits();
  BitReader low_parts(low, low_bits);
  std::uint32_t selected = 0;
  for (std::size_t word = 0; word < words; ++word)
    for (std::uint32_t ones = high[word]; ones != 0 && selected < block.selected;
         ones &= ones - 1) {
      const auto bit = static_cast<std::uint32_t>(32 * word) +
                       static_cast<std::uint32_t>(std::countr_zero(ones));
      visit((bit - selected++) << low_bits | low_parts.next());
    }
}

/// Returns a sentence about the first invalid index in a block of `count` values, or null.
HWY_INLINE const char* index_error(const std::uint32_t* high, const std::uint32_t* low,
                                   const BlocktopkBlock& block, std::size_t count) {
  std::size_t ones = 0;
  for (std::size_t word = 0; word < block.high_words(); ++word)
    ones += static_cast<std::size_t>(std::popcount(high[word]));
  if (ones > block.selected) return "a block selects more values than its density allows";
  std::uint64_t next = 0;
  bool ascends = true;
  for_each_index(high, low, block, [&](std::uint32_t index) {
    ascends &= index >= next;
    next = std::uint64_t{index} + 1;
  });
  if (!ascends) return "a block's indices do not ascend";
  return next > count ? "an index lies beyond the end of its block" : nullptr;
}

/// Writes indices and codes of a block.
HWY_INLINE void write_lists(const BlocktopkSelected& selected, const BlocktopkBlock& block,
                            std::uint32_t* high, std::uint32_t* low, std::uint32_t* values) {
  const unsigned low_bits = block.low_bits();
  BitWriter low_parts(low, low_bits), codes(values, block.value_bits());
  std::fill_n(high, block.high_words(), 0u);
  std::uint32_t word = 0, ones = 0;
  for (std::uint32_t j = 0; j < selected.count; ++j) {
    const std::uint32_t bit = (selected.index[j] >> low_bits) + j;
    if (bit / 32 != word) ones = 0;
    word = bit / 32;
    ones |= 1u << bit % 32;
    high[word] = ones;
    low_parts.put(selected.index[j] & ((1u << low_bits) - 1));
    codes.put(selected.code[j]);
  }
  low_parts.finish(low + block.low_words());
  codes.finish(values + block.value_words());
}

}  // namespace tersor::kernels
