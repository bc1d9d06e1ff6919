// Units: the 512 values of a segment that a warp works on at a time, in chunks of one row (4 or 8
// values) a thread.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/row.cuh"
#include "kernels/scalar/philox.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

/// Values of a unit; as many share their counters of random bytes.
constexpr unsigned kUnitValues = kNoiseUnit;
template <unsigned kRow>
constexpr unsigned kChunkValues = 32 * kRow;
template <unsigned kRow>
constexpr unsigned kUnitChunks = kUnitValues / kChunkValues<kRow>;

/// A thread's values of a unit.
template <unsigned kRow>
using Rows = float[kUnitChunks<kRow>][kRow];

/// The same value in all of them.
template <unsigned kRow>
TERSOR_DEVICE void fill_rows(Rows<kRow>& rows, float value) {
  TERSOR_UNROLL
  for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i) rows[chunk][i] = value;
  }
}

/// Where a thread's rows of a unit lie in their segment.
template <unsigned kRow>
struct UnitPlace {
  std::size_t first;  // of the unit
  std::size_t count;  // of the segment
  unsigned thread;

  /// Where a row begins in the unit, and in the segment.
  TERSOR_DEVICE unsigned index(unsigned chunk) const {
    return chunk * kChunkValues<kRow> + thread * kRow;
  }
  TERSOR_DEVICE std::size_t position(unsigned chunk) const { return first + index(chunk); }

  /// Values of the unit; all but a segment's last one are whole.
  TERSOR_DEVICE unsigned values() const {
    return is_whole() ? static_cast<unsigned>(kUnitValues) : static_cast<unsigned>(count - first);
  }
  TERSOR_DEVICE bool is_whole() const { return count - first >= kUnitValues; }

  TERSOR_DEVICE RowPlace row(unsigned chunk, bool aligned) const {
    const unsigned at = index(chunk), end = values();
    return {first + at, at < end ? end - at : 0u, aligned};
  }
};

/// All rows of a thread: whole and aligned units row by row, others value by value. One branch
/// decides for the whole unit, so that its loads go out together.
template <Load kLoad, typename T, unsigned kRow>
TERSOR_DEVICE void load_rows(const T* values, const UnitPlace<kRow>& place, bool aligned,
                             Rows<kRow>& rows) {
  using Bytes = RowBytes<kRow * sizeof(T)>;
  if (aligned && place.is_whole()) {
    const T* from = values + place.position(0);
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk)
      unpack_row<T>(Bytes::template load_from<kLoad>(from + chunk * kChunkValues<kRow>),
                    rows[chunk]);
    return;
  }
  TERSOR_UNROLL
  for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk)
    load_row<kLoad>(values, place.row(chunk, false), rows[chunk]);
}

template <typename T, unsigned kRow>
TERSOR_DEVICE void store_rows(const Rows<kRow>& rows, T* values, const UnitPlace<kRow>& place,
                              bool aligned) {
  if (aligned && place.is_whole()) {
    T* to = values + place.position(0);
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk)
      pack_row<T>(rows[chunk]).store_to(to + chunk * kChunkValues<kRow>);
    return;
  }
  TERSOR_UNROLL
  for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk)
    store_row(rows[chunk], values, place.row(chunk, false));
}

/// In place of what for_each_run calls.
struct DoNothing {
  template <typename... Arguments>
  TERSOR_DEVICE void operator()(const Arguments&...) const {}
};

/// The rounds of a launch in which a block takes part: a run of table.run units for each warp. One
/// block's rounds follow each other (kFollow), so that its next unit lies in the same segment or a
/// little behind; or those of all blocks do, side by side.
template <class Block, class Table, bool kFollow>
class BlockRounds {
 public:
  TERSOR_DEVICE BlockRounds(const Block& block, const Table& table) : block_(block), table_(table) {
    if constexpr (kFollow) {
      const std::uint32_t units = block.warps() * table.run;
      const std::uint32_t rounds = (table.units + units - 1) / units;
      const std::uint32_t each = rounds / block.blocks(), more = rounds % block.blocks();
      first_ = block.rank() * each + (block.rank() < more ? block.rank() : more);
      count_ = each + (block.rank() < more ? 1 : 0);
    }
  }

  TERSOR_DEVICE bool has(unsigned turn) const {
    if constexpr (kFollow)
      return turn < count_;
    else
      return round(turn) * block_.warps() * table_.run < table_.units;
  }
  TERSOR_DEVICE std::uint32_t round(unsigned turn) const {
    return kFollow ? first_ + turn : block_.rank() + turn * block_.blocks();
  }
  /// This warp's units.
  TERSOR_DEVICE std::uint32_t first_unit(unsigned turn) const {
    return (round(turn) * block_.warps() + block_.warp_rank()) * table_.run;
  }
  TERSOR_DEVICE std::uint32_t end_unit(unsigned turn) const {
    const std::uint32_t end = first_unit(turn) + table_.run;
    return end < table_.units ? end : table_.units;
  }
  /// The segment of a unit, of one that was `index` before.
  TERSOR_DEVICE unsigned find(unsigned index, std::uint32_t unit) const {
    return kFollow && index != kNone ? table_.index_from(index, unit) : table_.index_of(unit);
  }
  static constexpr unsigned kNone = ~0u;

 private:
  const Block& block_;
  const Table& table_;
  std::uint32_t first_ = 0, count_ = 0;
};

/// Goes through the units, of `kValues` values each, in rounds, in each of which a warp takes a run
/// of table.run units. Calls visit(segment, first) for each unit of this warp, with its first
/// value; then in all warps of a block read(round, turn), for its turn-th round; then
/// written(segment, first, end) for what the run has of each segment. Little is kept between
/// visits: they need the registers.
template <unsigned kValues, class Block, class Table, class Read, class Visit, class Written>
TERSOR_DEVICE void for_each_run(const Block& block, const Table& table, const Read& read,
                                const Visit& visit, const Written& written) {
  // To find the segment takes long where there are many, and longer units are fewer.
  constexpr bool kFollow = kValues == kUnitValues && Table::kEntries > kFewSegments;
  using Rounds = BlockRounds<Block, Table, kFollow>;
  const Rounds rounds(block, table);
  unsigned index = Rounds::kNone;
  TERSOR_KEEP_LOOP
  for (unsigned turn = 0; rounds.has(turn); ++turn) {
    TERSOR_KEEP_LOOP
    for (std::uint32_t unit = rounds.first_unit(turn); unit < rounds.end_unit(turn); ++unit) {
      index = rounds.find(index, unit);
      const auto& segment = table.entry[index];
      visit(segment, std::size_t{unit - segment.first_unit} * kValues);
    }
    read(rounds.round(turn), turn);
    if constexpr (!std::is_same_v<Written, DoNothing>) {
      TERSOR_KEEP_LOOP
      for (std::uint32_t unit = rounds.first_unit(turn); unit < rounds.end_unit(turn);) {
        const auto& segment = table.find(unit);
        const std::size_t first = std::size_t{unit - segment.first_unit} * kValues;
        std::size_t end = std::size_t{rounds.end_unit(turn) - segment.first_unit} * kValues;
        end = end < segment.count ? end : segment.count;
        written(segment, first, end);
        unit += static_cast<std::uint32_t>((end - first + kValues - 1) / kValues);
      }
    }
  }
}

/// The same for units of 512 values, with visit(segment, place).
template <unsigned kRow, class Block, class Table, class Read, class Visit, class Written>
TERSOR_DEVICE void for_each_place(const Block& block, const Table& table, const Read& read,
                                  const Visit& visit, const Written& written) {
  for_each_run<kUnitValues>(
      block, table, read,
      [&](const auto& segment, std::size_t first) {
        visit(segment, UnitPlace<kRow>{first, segment.count, block.warp().thread_rank()});
      },
      written);
}

/// Calls visit(segment, place) for each unit of this warp.
template <unsigned kRow, class Block, class Table, class Visit>
TERSOR_DEVICE void for_each_unit(const Block& block, const Table& table, const Visit& visit) {
  for_each_place<kRow>(block, table, DoNothing{}, visit, DoNothing{});
}

/// What all kernels have that take a unit a warp.
struct UnitKernel {
  static constexpr unsigned kThreads = 256;
  static constexpr unsigned kRun = 8;  // units that are worth summing at once
  static constexpr bool kScans = false;
  struct Shared {};
};

}  // namespace tersor::kernels
