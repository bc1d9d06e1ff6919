// Tiles: the 1,024 values of a segment that a warp processes at a time, 32 values per thread. A
// block processes a range of consecutive tiles, one tile per warp and round.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/units.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

constexpr unsigned kTileValues = 2 * kUnitValues;
constexpr unsigned kThreadValues = kTileValues / kWarpThreads;

/// Returns the index of the value after the tile at `first`.
template <class Entry>
TERSOR_DEVICE std::size_t end_of_tile(const Entry& segment, std::size_t first) {
  return segment.count - first < kTileValues ? segment.count : first + kTileValues;
}

/// The order of kernels that process ranges of tiles. table.run is the number of rounds per block.
struct RangeOrder {
  static constexpr unsigned kValues = kTileValues;
  static constexpr bool kRanges = true;

  /// Calls visit(segment, first) for each tile of this warp, with the index of the tile's first
  /// value. After each round, calls read(round, iteration) in all warps of the block.
  template <class Block, class Table, class Read, class Visit, class Written>
  TERSOR_DEVICE static void visit(const Block& block, const Table& table, const Read& read,
                                  const Visit& visit, const Written&) {
    constexpr unsigned kNone = ~0u;
    const std::uint32_t first = first_of(block, table);
    unsigned index = kNone;
    TERSOR_KEEP_LOOP
    for (unsigned iteration = 0; iteration < table.run; ++iteration) {
      const std::uint32_t round = first + iteration * block.warps();
      if (round >= table.units) break;
      const std::uint32_t tile = round + block.warp_rank();
      if (tile < table.units) {
        index = index == kNone ? table.index_of(tile) : table.index_from(index, tile);
        const auto& segment = table.entry[index];
        visit(segment, std::size_t{tile - segment.first_unit} * kTileValues);
      }
      read(block.rank() * table.run + iteration, iteration);
    }
  }

  /// Calls written(segment, first, end) for the values of each segment in the block's range, by one
  /// warp per segment. A barrier, so a warp reads the values of other warps.
  template <class Block, class Table, class Written>
  TERSOR_DEVICE static void finish(const Block& block, const Table& table, const Written& written) {
    block.sync();
    const std::uint32_t first = first_of(block, table);
    const std::uint32_t last = first + table.run * block.warps();
    const std::uint32_t end = last < table.units ? last : table.units;
    unsigned warp = 0;
    TERSOR_KEEP_LOOP
    for (std::uint32_t tile = first; tile < end; ++warp) {
      const auto& segment = table.find(tile);
      const std::size_t from = std::size_t{tile - segment.first_unit} * kTileValues;
      const std::size_t to = std::size_t{end - segment.first_unit} * kTileValues;
      const std::size_t stop = to < segment.count ? to : segment.count;
      if (warp % block.warps() == block.warp_rank()) written(segment, from, stop);
      tile += static_cast<std::uint32_t>((stop - from + kTileValues - 1) / kTileValues);
    }
  }

 private:
  template <class Block, class Table>
  TERSOR_DEVICE static std::uint32_t first_of(const Block& block, const Table& table) {
    return block.rank() * table.run * block.warps();
  }
};

}  // namespace tersor::kernels
