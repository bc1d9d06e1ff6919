// The payload of entropy: reads and writes the sections of segments. kernels/entropy codes blocks.
#pragma once

#include "codecs/frame.h"
#include "codecs/slices.h"
#include "kernels/entropy/cpu.h"

#include <tersor/codecs/entropy.h>
#include <tersor/threads.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>

namespace tersor::encoding {

/// The table of a segment is made from blocks 0, 16, 32, ...
inline constexpr std::size_t kHistogramStride = 16;

/// The sections of a segment in a frame.
struct EntropyView {
  const std::byte* sizes = nullptr;
  const std::byte* starts = nullptr;
  const std::byte* blocks = nullptr;
  std::size_t end = 0;  // of the segment, in bytes of the payload
  kernels::EntropyTable table;

  std::uint16_t size(std::size_t block) const {
    std::uint16_t size;
    std::memcpy(&size, sizes + block * sizeof size, sizeof size);
    return size;
  }
  std::uint64_t start(std::size_t number) const {
    std::uint64_t start;
    std::memcpy(&start, starts + number * sizeof start, sizeof start);
    return start;
  }
  /// Returns the words of a block, and of blocks [begin, end).
  std::size_t words(const EntropyLayout& layout, std::size_t block) const {
    return size(block) == kEntropyPlain ? layout.plain_words(block) : size(block);
  }
  std::uint64_t words(const EntropyLayout& layout, std::size_t begin, std::size_t end) const {
    std::uint64_t words = 0;
    for (; begin < end; ++begin) words += this->words(layout, begin);
    return words;
  }
  /// Returns the first word of a block.
  std::uint64_t first_word(const EntropyLayout& layout, std::size_t block) const {
    const std::size_t number = block / EntropyLayout::kBlocksAStart;
    return (number == 0 ? 0 : start(number - 1)) +
           words(layout, number * EntropyLayout::kBlocksAStart, block);
  }

  /// Reads the sections after `end`. Returns null, or a sentence about the fault.
  const char* read(ConstByteSpan payload, const EntropyLayout& layout) {
    if (layout.count == 0) return nullptr;
    const ConstByteSpan rest = payload.subspan(end);
    if (rest.empty()) return "its payload is too short";
    const auto listed = static_cast<std::size_t>(rest[0]);
    const std::size_t after = layout.table_bytes(listed),
                      bytes = after + layout.sizes_bytes() + layout.starts_bytes();
    if (rest.size() < bytes) return "its payload is too short";
    if (listed > kernels::exponents_of(layout.dtype)) return "its table is too long";
    std::memcpy(table.exponent, &rest[1], listed);
    if (!table.complete(listed, layout.dtype)) return "its table has a wrong exponent";
    sizes = rest.data() + after;
    starts = sizes + layout.sizes_bytes();
    blocks = starts + layout.starts_bytes();
    std::uint64_t words = 0;
    for (std::size_t block = 0; block < layout.blocks(); ++block) {
      const std::size_t number = block / EntropyLayout::kBlocksAStart;
      if (number != 0 && block % EntropyLayout::kBlocksAStart == 0 && start(number - 1) != words)
        return "its starts do not match its sizes";
      if (size(block) != kEntropyPlain && size(block) >= layout.plain_words(block))
        return "a block is longer than its values";
      words += this->words(layout, block);
    }
    const std::size_t all = bytes + align_up(words * 4, kSectionAlignment);
    if (rest.size() < all) return "its payload is too short";
    end += all;
    return nullptr;
  }
};

/// Returns the values of a block.
inline Slice block_slice(std::size_t segment, const EntropyLayout& layout, std::size_t block) {
  const std::size_t first = block * kEntropyBlock;
  return {
      .segment = segment, .first = first, .count = std::min(kEntropyBlock, layout.count - first)};
}

/// Writes the segments of a payload.
struct EntropyWriter {
  ByteSpan payload;
  Dtype dtype;
  Threads* threads;
  PayloadSum* sum = nullptr;  // null: not summed; else `threads` is one thread
  std::size_t used = 0;

  /// Returns the memory for the unchanged values of the next segment. Blocks are coded in place.
  std::byte* value_space(const EntropyLayout& layout) const {
    return payload.data() + used + layout.most_offset();
  }

  /// Writes a segment without set bits.
  void write_zeros(const EntropyLayout& layout) {
    const std::size_t bytes = layout.table_bytes(0) + layout.sizes_bytes() + layout.starts_bytes();
    std::memset(payload.data() + used, 0, bytes);
    used += bytes;
  }

  /// Encodes the values of a segment, which may lie in `value_space`.
  void write(const EntropyLayout& layout, const std::byte* values) {
    if (layout.count == 0) return;
    std::byte* const table_at = payload.data() + used;
    const auto found = table_of(layout, values);
    const auto& table = found.first;
    const auto listed = found.second;
    std::byte* const sizes = table_at + layout.table_bytes(listed);
    std::byte* const blocks = sizes + layout.sizes_bytes() + layout.starts_bytes();
    const std::size_t value_bytes = dtype_bytes(dtype);
    const std::size_t tasks =
        std::min(layout.blocks(), max_tasks(threads == nullptr ? 1 : threads->count()));
    // Tasks write to the places of their first blocks, and one thread moves the blocks together.
    std::byte* const task_areas = tasks > 1 ? value_space(layout) : blocks;
    parallel_for(layout.blocks(), threads, [&](std::size_t, std::size_t begin, std::size_t end) {
      std::byte* next = task_areas + begin * kEntropyBlock * value_bytes;
      for (std::size_t block = begin; block < end; ++block) {
        const Slice slice = block_slice(0, layout, block);
        const std::uint16_t size = kernels::entropy_encode(values + slice.first * value_bytes,
                                                           slice.count, dtype, table, next);
        std::memcpy(sizes + block * sizeof size, &size, sizeof size);
        const std::size_t bytes = 4 * (size == kEntropyPlain ? layout.plain_words(block) : size);
        add(next, bytes);
        next += bytes;
      }
    });
    write_table(table_at, table, listed);
    EntropyView view;
    view.sizes = sizes;
    std::byte* next = blocks;
    for (std::size_t task = 0; task < tasks; ++task) {
      const std::size_t begin = task * layout.blocks() / tasks;
      const std::size_t end = (task + 1) * layout.blocks() / tasks;
      const std::size_t bytes = 4 * view.words(layout, begin, end);
      if (tasks > 1) std::memmove(next, task_areas + begin * kEntropyBlock * value_bytes, bytes);
      next += bytes;
    }
    write_starts(layout, view, sizes + layout.sizes_bytes());
    const std::size_t bytes = static_cast<std::size_t>(next - table_at);
    pad_section(payload, used + bytes, used + align_up(bytes, kSectionAlignment));
    const std::size_t sizes_end = layout.blocks() * sizeof(std::uint16_t);
    std::memset(sizes + sizes_end, 0, layout.sizes_bytes() - sizes_end);
    add(table_at, static_cast<std::size_t>(blocks - table_at));
    used += align_up(bytes, kSectionAlignment);
  }

 private:
  void add(const std::byte* bytes, std::size_t count) const {
    if (sum != nullptr) sum->add(bytes, static_cast<std::size_t>(bytes - payload.data()), count);
  }

  /// Orders the exponents of some blocks by falling count. Also returns how many occurred.
  static std::pair<kernels::EntropyTable, std::size_t> table_of(const EntropyLayout& layout,
                                                                const std::byte* values) {
    std::uint32_t counts[256] = {};
    for (std::size_t block = 0; block < layout.blocks(); block += kHistogramStride) {
      const Slice slice = block_slice(0, layout, block);
      kernels::entropy_count(values + slice.first * dtype_bytes(layout.dtype), slice.count,
                             layout.dtype, counts);
    }
    std::array<std::uint8_t, 256> order;
    std::iota(order.begin(), order.end(), std::uint8_t{0});
    std::ranges::sort(order, [&](std::uint8_t a, std::uint8_t b) {
      return std::pair(counts[b], a) < std::pair(counts[a], b);
    });
    const auto used = static_cast<std::size_t>(256 - std::ranges::count(counts, 0u));
    const std::size_t listed = std::min(used, EntropyLayout::kMostTable - 1);
    kernels::EntropyTable table;
    std::ranges::copy(order, table.exponent);
    table.complete(listed, layout.dtype);
    return {table, listed};
  }

  static void write_table(std::byte* to, const kernels::EntropyTable& table, std::size_t listed) {
    to[0] = static_cast<std::byte>(listed);
    std::memcpy(to + 1, table.exponent, listed);
    std::memset(to + 1 + listed, 0, align_up(1 + listed, kSectionAlignment) - 1 - listed);
  }

  static void write_starts(const EntropyLayout& layout, const EntropyView& view,
                           std::byte* starts) {
    std::memset(starts, 0, layout.starts_bytes());
    std::uint64_t words = 0;
    for (std::size_t i = 0; i < layout.starts(); ++i) {
      const std::size_t begin = i * EntropyLayout::kBlocksAStart;
      words += view.words(layout, begin, begin + EntropyLayout::kBlocksAStart);
      std::memcpy(starts + i * sizeof words, &words, sizeof words);
    }
  }
};

}  // namespace tersor::encoding
