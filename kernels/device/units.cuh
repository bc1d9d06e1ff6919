// Units: the 512 values of a segment that a warp works on at a time, in chunks of one row (4 or 8
// values) a thread.
#pragma once

#include "kernels/device/row.cuh"
#include "kernels/scalar/philox.h"

#include <cstddef>
#include <cstdint>

/// Before a loop that mostly makes one turn.
#define TERSOR_KEEP_LOOP _Pragma("unroll 1")

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

/// Calls visit(unit) for each unit of this warp.
template <class Block, class Visit>
TERSOR_DEVICE void for_each_unit(const Block& block, std::uint32_t units, const Visit& visit) {
  const std::size_t stride = static_cast<std::size_t>(block.blocks()) * block.warps();
  for (std::size_t unit =
           static_cast<std::size_t>(block.rank()) * block.warps() + block.warp_rank();
       unit < units; unit += stride)
    visit(static_cast<std::uint32_t>(unit));
}

/// Calls visit(segment, place) for each unit of this warp.
template <unsigned kRow, class Block, class Table, class Visit>
TERSOR_DEVICE void for_each_unit(const Block& block, const Table& table, const Visit& visit) {
  for_each_unit(block, table.units, [&](std::uint32_t unit) {
    const auto& segment = table.find(unit);
    visit(segment, UnitPlace<kRow>{std::size_t{unit - segment.first_unit} * kUnitValues,
                                   segment.count, block.warp().thread_rank()});
  });
}

/// What all kernels have that take a unit a warp.
struct UnitKernel {
  static constexpr unsigned kThreads = 256;
  static constexpr bool kScans = false;
  struct Shared {};
};

}  // namespace tersor::kernels
