// Units: the 512 values of a segment that a warp processes at a time, in chunks of one row (4 or 8
// values) per thread.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/row.cuh"
#include "kernels/scalar/philox.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

/// Values per unit. The values of a unit share their counters of random bytes.
constexpr unsigned kUnitValues = kNoiseUnit;
template <unsigned kRow>
constexpr unsigned kChunkValues = 32 * kRow;
template <unsigned kRow>
constexpr unsigned kUnitChunks = kUnitValues / kChunkValues<kRow>;

/// The values of a unit held by one thread.
template <unsigned kRow>
using Rows = float[kUnitChunks<kRow>][kRow];

/// Fills a row, or all rows, with the same value.
template <unsigned kRow>
TERSOR_DEVICE void fill_row(float (&row)[kRow], float value) {
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRow; ++i) row[i] = value;
}
template <unsigned kRow>
TERSOR_DEVICE void fill_rows(Rows<kRow>& rows, float value) {
  TERSOR_UNROLL
  for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) fill_row<kRow>(rows[chunk], value);
}

/// The positions of a thread's rows of a unit within the segment.
template <unsigned kRow>
struct UnitPosition {
  std::size_t first;  // of the unit
  std::size_t count;  // of the segment
  unsigned thread;

  /// Returns the index of a row's first value in the unit (index) and in the segment (position).
  TERSOR_DEVICE unsigned index(unsigned chunk) const {
    return chunk * kChunkValues<kRow> + thread * kRow;
  }
  TERSOR_DEVICE std::size_t offset(unsigned chunk) const { return first + index(chunk); }

  /// Number of values in the unit. Only the last unit of a segment may be partial.
  TERSOR_DEVICE unsigned values() const {
    return is_whole() ? static_cast<unsigned>(kUnitValues) : static_cast<unsigned>(count - first);
  }
  TERSOR_DEVICE bool is_whole() const { return count - first >= kUnitValues; }

  TERSOR_DEVICE RowPosition row(unsigned chunk, bool aligned) const {
    const unsigned at = index(chunk), end = values();
    return {first + at, at < end ? end - at : 0u, aligned};
  }
};

/// Loads all rows of a thread: row by row in whole and aligned units, otherwise value by value. A
/// single branch per unit decides, so the loads of the unit are issued together.
template <Load kLoad, typename T, unsigned kRow>
TERSOR_DEVICE void load_rows(const T* values, const UnitPosition<kRow>& position, bool aligned,
                             Rows<kRow>& rows) {
  using Bytes = RowBytes<kRow * sizeof(T)>;
  if (aligned && position.is_whole()) {
    const T* from = values + position.offset(0);
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk)
      unpack_row<T>(Bytes::template load_from<kLoad>(from + chunk * kChunkValues<kRow>),
                    rows[chunk]);
    return;
  }
  TERSOR_UNROLL
  for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk)
    load_row<kLoad>(values, position.row(chunk, false), rows[chunk]);
}

template <typename T, unsigned kRow>
TERSOR_DEVICE void store_rows(const Rows<kRow>& rows, T* values, const UnitPosition<kRow>& position,
                              bool aligned) {
  if (aligned && position.is_whole()) {
    T* to = values + position.offset(0);
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk)
      pack_row<T>(rows[chunk]).store_to(to + chunk * kChunkValues<kRow>);
    return;
  }
  TERSOR_UNROLL
  for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk)
    store_row(rows[chunk], values, position.row(chunk, false));
}

/// A callback of for_each_run that does nothing.
struct DoNothing {
  template <typename... Arguments>
  TERSOR_DEVICE void operator()(const Arguments&...) const {}
};

/// The rounds of a launch in which a block takes part. Each warp processes table.run units per
/// round. If kConsecutive is true, a block's rounds are consecutive, and the next unit is in the
/// same segment or slightly later. Otherwise the rounds of all blocks are interleaved.
template <class Block, class Table, bool kConsecutive>
class BlockRounds {
 public:
  TERSOR_DEVICE BlockRounds(const Block& block, const Table& table) : block_(block), table_(table) {
    if constexpr (kConsecutive) {
      const std::uint32_t units = block.warps() * table.run;
      const std::uint32_t rounds = (table.units + units - 1) / units;
      const std::uint32_t each = rounds / block.blocks(), more = rounds % block.blocks();
      first_ = block.rank() * each + (block.rank() < more ? block.rank() : more);
      count_ = each + (block.rank() < more ? 1 : 0);
    }
  }

  TERSOR_DEVICE bool has(unsigned iteration) const {
    if constexpr (kConsecutive)
      return iteration < count_;
    else
      return round(iteration) * block_.warps() * table_.run < table_.units;
  }
  TERSOR_DEVICE std::uint32_t round(unsigned iteration) const {
    return kConsecutive ? first_ + iteration : block_.rank() + iteration * block_.blocks();
  }
  /// The units of this warp.
  TERSOR_DEVICE std::uint32_t first_unit(unsigned iteration) const {
    return (round(iteration) * block_.warps() + block_.warp_rank()) * table_.run;
  }
  TERSOR_DEVICE std::uint32_t end_unit(unsigned iteration) const {
    const std::uint32_t end = first_unit(iteration) + table_.run;
    return end < table_.units ? end : table_.units;
  }
  /// Returns the index of the segment of a unit. `index` is the segment of an earlier unit, or
  /// kNone.
  TERSOR_DEVICE unsigned find(unsigned index, std::uint32_t unit) const {
    return kConsecutive && index != kNone ? table_.index_from(index, unit) : table_.index_of(unit);
  }
  static constexpr unsigned kNone = ~0u;

 private:
  const Block& block_;
  const Table& table_;
  std::uint32_t first_ = 0, count_ = 0;
};

/// Visits units of `kValues` values in rounds. Each warp processes a run of table.run units per
/// round. The callbacks run in this order:
/// - Calls visit(segment, first) for each unit of this warp, with the index of the unit's first
///   value.
/// - Calls read(round, turn) in all warps of a block, for the block's round number `iteration`.
/// - Calls written(segment, first, end) for the values of the run in each segment.
///
/// Little state is kept between calls, because the callbacks need the registers.
template <unsigned kValues, class Block, class Table, class Read, class Visit, class Written>
TERSOR_DEVICE void for_each_run(const Block& block, const Table& table, const Read& read,
                                const Visit& visit, const Written& written) {
  // Finding a segment is slow in long lists. Longer units are fewer, so the search matters less.
  constexpr bool kConsecutive = kValues == kUnitValues && Table::kEntries > kShortListSegments;
  using Rounds = BlockRounds<Block, Table, kConsecutive>;
  const Rounds rounds(block, table);
  unsigned index = Rounds::kNone;
  TERSOR_KEEP_LOOP
  for (unsigned iteration = 0; rounds.has(iteration); ++iteration) {
    TERSOR_KEEP_LOOP
    for (std::uint32_t unit = rounds.first_unit(iteration); unit < rounds.end_unit(iteration);
         ++unit) {
      index = rounds.find(index, unit);
      const auto& segment = table.entry[index];
      visit(segment, std::size_t{unit - segment.first_unit} * kValues);
    }
    read(rounds.round(iteration), iteration);
    if constexpr (!std::is_same_v<Written, DoNothing>) {
      TERSOR_KEEP_LOOP
      for (std::uint32_t unit = rounds.first_unit(iteration); unit < rounds.end_unit(iteration);) {
        const auto& segment = table.find(unit);
        const std::size_t first = std::size_t{unit - segment.first_unit} * kValues;
        std::size_t end = std::size_t{rounds.end_unit(iteration) - segment.first_unit} * kValues;
        end = end < segment.count ? end : segment.count;
        written(segment, first, end);
        unit += static_cast<std::uint32_t>((end - first + kValues - 1) / kValues);
      }
    }
  }
}

/// Calls visit(segment, position) for each unit of this warp.
template <unsigned kRow, class Block, class Table, class Visit>
TERSOR_DEVICE void for_each_unit(const Block& block, const Table& table, const Visit& visit) {
  const auto visit_unit = [&](const auto& segment, std::size_t first) {
    visit(segment, UnitPosition<kRow>{first, segment.count, block.warp().thread_rank()});
  };
  for_each_run<kUnitValues>(block, table, DoNothing{}, visit_unit, DoNothing{});
}

/// The order of kernels that process runs of units of kUnitValues values. See for_each_run.
struct RunOrder {
  static constexpr unsigned kValues = kUnitValues;
  static constexpr bool kRanges = false;

  template <class Block, class Table, class Read, class Visit, class Written>
  TERSOR_DEVICE static void visit(const Block& block, const Table& table, const Read& read,
                                  const Visit& visit, const Written& written) {
    for_each_run<kUnitValues>(block, table, read, visit, written);
  }
  template <class Block, class Table, class Written>
  TERSOR_DEVICE static void finish(const Block&, const Table&, const Written&) {}
};

/// Common members of kernels that process one unit per warp.
struct UnitKernel {
  using Order = RunOrder;
  static constexpr unsigned kThreads = 256;
  static constexpr unsigned kRun = 8;  // units worth summing at once
  static constexpr bool kScans = false;
  struct Shared {};
};

}  // namespace tersor::kernels
