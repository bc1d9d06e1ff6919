// The decode kernel: sums several payloads in order, in f32, rounded once.
//
// Grid: each block processes 4,096 outputs of one segment at a time. The sums stay in shared memory
// between the single read (if values are added) and the single write. Per frame, the kernel reads 2
// bytes per index and 4, 2 or 1 bytes per value. Each output is written once.
//
// The kernel trusts no byte of a frame. A block searches for its indices within their tile, and
// adds values only if the indices belong to the block's unit and ascend. Even in an invalid list,
// the search for a larger index never ends before the search for a smaller index. Units therefore
// divide the list of a tile into consecutive slices, and exactly one block checks each index.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/queue.cuh"
#include "kernels/device/row.cuh"
#include "kernels/quantize/formulas.h"
#include "kernels/topk/formulas.h"

#include <tersor/codecs/topk.h>
#include <tersor/modes.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Outputs that a block processes at a time. A segment's first unit begins at value 0 or at the
/// last multiple of kTopkDecodeUnit at or before the start of the window.
constexpr std::size_t kTopkDecodeUnit = 4096;
static_assert(kTopkTile % kTopkDecodeUnit == 0);

struct TopkDecodeEntry {
  void* output;         // address of value `begin`
  std::uint64_t count;  // of the segment
  std::uint64_t begin;  // values [begin, end) are requested
  std::uint64_t end;
  std::uint64_t offset;  // of the segment's sections, in bytes from the start of the payload
  std::uint32_t selected;
  std::uint32_t first_unit;
  std::uint32_t segment;  // index of the segment in the call
  std::uint32_t reserved;
};
/// The number of entries that fit into the kernel parameters next to the frames.
constexpr unsigned kTopkMaxDecodeEntries = 420;

/// The sections of one segment in one payload.
struct TopkSections {
  const std::byte* payload;
  TopkLayout layout;

  TERSOR_DEVICE std::uint32_t first(std::size_t tile) const {
    return load_input(reinterpret_cast<const std::uint32_t*>(payload) + tile);
  }
  TERSOR_DEVICE std::uint32_t index_in_tile(std::size_t position) const {
    return load_input(reinterpret_cast<const std::uint16_t*>(payload + layout.index_offset()) +
                      position);
  }
  TERSOR_DEVICE float value(std::size_t position) const {
    const std::byte* values = payload + layout.values_offset();
    if (layout.values == TopkValues::kF32)
      return load_input(reinterpret_cast<const float*>(values) + position);
    if (layout.values == TopkValues::kBf16)
      return bf16_to_f32(load_input(reinterpret_cast<const std::uint16_t*>(values) + position));
    const auto* scales = reinterpret_cast<const float*>(payload + layout.scales_offset());
    return code_value(load_input(reinterpret_cast<const std::int8_t*>(values) + position),
                      load_input(scales + position / TopkLayout::kBlock));
  }

  /// Returns the first position in [low, high) whose index is at least `index`. A warp probes 32
  /// positions at a time, because each probe costs the latency of a load.
  template <class Warp>
  TERSOR_DEVICE std::uint32_t lower_bound(const Warp& warp, std::uint32_t low, std::uint32_t high,
                                          std::uint32_t index) const {
    while (low < high) {
      const std::uint32_t step = (high - low + 31) / 32;
      const std::uint64_t probe = low + std::uint64_t{warp.thread_rank() + 1} * step - 1;
      const std::uint32_t smaller = warp.ballot(probe < high && index_in_tile(probe) < index);
      const unsigned leading = count_bits(smaller & ~(smaller + 1));  // before the first gap
      const std::uint64_t end = low + std::uint64_t{leading + 1} * step - 1;
      low += leading * step;
      high = end < high ? static_cast<std::uint32_t>(end) : high;
      high = leading == 32 ? low : high;
    }
    return low;
  }
};

/// The outputs of a block: the requested values of [unit, unit + kTopkDecodeUnit).
struct TopkDecodeUnit {
  const TopkDecodeEntry& segment;
  std::size_t unit;
  unsigned skipped;  // values of the unit before the requested values
  unsigned values;   // requested values

  TERSOR_DEVICE TopkDecodeUnit(const TopkDecodeEntry& entry, std::uint32_t number)
      : segment(entry),
        unit((entry.begin / kTopkDecodeUnit + (number - entry.first_unit)) * kTopkDecodeUnit),
        skipped(unit < entry.begin ? static_cast<unsigned>(entry.begin - unit) : 0),
        values(up_to(entry.end) - skipped) {}

  /// Position of the first requested value in the output.
  TERSOR_DEVICE std::size_t first() const { return unit + skipped - segment.begin; }
  TERSOR_DEVICE std::size_t tile() const { return unit / kTopkTile; }
  TERSOR_DEVICE unsigned index_in_tile() const { return static_cast<unsigned>(unit % kTopkTile); }
  /// Number of values of the unit before `end`.
  TERSOR_DEVICE unsigned up_to(std::size_t end) const {
    return end - unit < kTopkDecodeUnit ? static_cast<unsigned>(end - unit) : kTopkDecodeUnit;
  }
  /// True if the unit ends the segment, so later indices are invalid.
  TERSOR_DEVICE bool ends_segment() const { return unit + kTopkDecodeUnit >= segment.count; }
};

template <typename T, unsigned kMaxSegments, unsigned kMaxFrames>
struct TopkDecodeKernel : LaunchBounds<256, 5> {
  static constexpr unsigned kRow = 16 / sizeof(T);
  struct Shared {
    SharedArray<float, kTopkDecodeUnit> sum;
  };

  SegmentTable<TopkDecodeEntry, std::min(kMaxSegments, kTopkMaxDecodeEntries)> table;
  FrameList<kMaxFrames> list;
  TopkValues values;
  float factor;
  DecodeMode mode;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    const bool valid = list.check(block);
    for (std::size_t i = block.rank(); i < table.units; i += block.blocks()) {
      const auto number = static_cast<std::uint32_t>(i);
      decode_unit(block, shared, TopkDecodeUnit(table.find(number), number), valid);
      block.sync();
    }
  }

 private:
  /// A range of a payload's indices, at most as long as a unit.
  struct Slice {
    std::uint32_t first;
    unsigned selected_count;
    bool valid;
  };

  /// Rows are transposed in shared memory, so neighbouring threads access neighbouring words.
  TERSOR_DEVICE static unsigned slot(unsigned value) {
    return value % kRow * (kTopkDecodeUnit / kRow) + value / kRow;
  }

  template <class Block>
  TERSOR_DEVICE void decode_unit(const Block& block, Shared& shared, const TopkDecodeUnit& unit,
                                 bool valid) const {
    load_outputs(block, shared, unit);
    for (unsigned index = 0; valid && index < list.frames; ++index) {
      const TopkSections frame{list.payload(index) + unit.segment.offset,
                               {unit.segment.count, unit.segment.selected, values}};
      const Slice slice = slice_of(block.warp(), frame, unit);
      valid = !block.any(!is_valid(block, frame, unit, slice));
      if (valid)
        add(block, shared, frame, unit, slice);
      else if (block.thread_rank() == 0)
        list.report(index, FrameFault::kIndices, unit.segment.segment);
    }
    block.sync();
    store_outputs(block, shared, unit, valid);
  }

  template <class Block, class Visit>
  TERSOR_DEVICE static void for_each_row(const Block& block, const TopkDecodeUnit& unit,
                                         const Visit& visit) {
    const bool aligned = is_aligned_for<T, kRow>(output_of(unit));
    for (unsigned i = block.thread_rank() * kRow; i < unit.values; i += block.threads() * kRow)
      visit(i, RowPosition{i, unit.values - i, aligned});
  }
  TERSOR_DEVICE static T* output_of(const TopkDecodeUnit& unit) {
    return static_cast<T*>(unit.segment.output) + unit.first();
  }

  template <class Block>
  TERSOR_DEVICE void load_outputs(const Block& block, Shared& shared,
                                  const TopkDecodeUnit& unit) const {
    for_each_row(block, unit, [&](unsigned first, RowPosition position) {
      float row[kRow] = {};
      if (mode == DecodeMode::kAdd)
        load_row<Load::kAny>(static_cast<const T*>(output_of(unit)), position, row);
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) shared.sum.set(slot(first + i), row[i]);
    });
  }

  template <class Block>
  TERSOR_DEVICE static void store_outputs(const Block& block, const Shared& shared,
                                          const TopkDecodeUnit& unit, bool valid) {
    for_each_row(block, unit, [&](unsigned first, RowPosition position) {
      float row[kRow];
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) {
        const float sum = shared.sum.get(slot(first + i));
        row[i] = valid ? sum : float_of(kNanBits);
      }
      store_row(row, output_of(unit), position);
    });
  }

  /// Returns the slice of a frame's indices that belong to a whole unit. The slice is invalid if
  /// `first` is invalid, or if the slice has more indices than a unit has values.
  template <class Warp>
  TERSOR_DEVICE static Slice slice_of(const Warp& warp, const TopkSections& frame,
                                      const TopkDecodeUnit& unit) {
    const std::size_t tile = unit.tile();
    const std::uint32_t begin = frame.first(tile), end = frame.first(tile + 1);
    const bool valid = begin <= end && end <= frame.layout.selected && (tile != 0 || begin == 0);
    if (!valid) return {0, 0, false};
    const unsigned index = unit.index_in_tile();
    const std::uint32_t first = frame.lower_bound(warp, begin, end, index);
    const std::uint32_t last =
        unit.ends_segment() ? end : frame.lower_bound(warp, begin, end, index + kTopkDecodeUnit);
    return {first, last - first, last - first <= kTopkDecodeUnit};
  }

  /// Calls visit(position, index in the unit) for the slice's positions, in parallel. An index
  /// outside the unit appears larger than all indices of the unit.
  template <class Block, class Visit>
  TERSOR_DEVICE static void for_each_selected(const Block& block, const TopkSections& frame,
                                              const TopkDecodeUnit& unit, Slice slice,
                                              const Visit& visit) {
    for (unsigned i = block.thread_rank(); i < slice.selected_count; i += block.threads())
      visit(slice.first + i, frame.index_in_tile(slice.first + i) - unit.index_in_tile());
  }

  /// True if the indices examined by this thread ascend and belong to the unit. The range check
  /// alone separates the first index of a slice from the previous slice.
  template <class Block>
  TERSOR_DEVICE static bool is_valid(const Block& block, const TopkSections& frame,
                                     const TopkDecodeUnit& unit, Slice slice) {
    if (!slice.valid) return false;
    bool valid = true;
    for_each_selected(block, frame, unit, slice, [&](std::uint32_t position, unsigned index) {
      valid &= index < unit.up_to(unit.segment.count);
      if (position != slice.first)
        valid &= frame.index_in_tile(position - 1) - unit.index_in_tile() < index;
    });
    return valid;
  }

  template <class Block>
  TERSOR_DEVICE void add(const Block& block, Shared& shared, const TopkSections& frame,
                         const TopkDecodeUnit& unit, Slice slice) const {
    for_each_selected(block, frame, unit, slice, [&](std::uint32_t position, unsigned index) {
      const unsigned value = index - unit.skipped;
      if (value >= unit.values) return;  // outside the window
      const unsigned at = slot(value);
      shared.sum.set(at, shared.sum.get(at) + topk_contribution(frame.value(position), factor));
    });
  }
};

}  // namespace tersor::kernels
