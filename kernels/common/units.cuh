// Units: the 512 values of a segment that a warp works on at a time, in chunks of one row (4 or 8
// values) a thread.
#pragma once

#include "kernels/common/philox.h"
#include "kernels/common/row.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Values of a unit; as many share their counters of random bytes.
constexpr unsigned kUnitValues = kNoiseUnit;
template <unsigned kRow>
constexpr unsigned kChunkValues = 32 * kRow;
template <unsigned kRow>
constexpr unsigned kUnitChunks = kUnitValues / kChunkValues<kRow>;

/// Where a thread's rows of a unit lie in their segment.
template <unsigned kRow>
struct UnitPlace {
  std::size_t first;  // of the unit
  std::size_t count;  // of the segment
  unsigned thread;

  TERSOR_DEVICE std::size_t position(unsigned chunk) const {
    return first + chunk * kChunkValues<kRow> + thread * kRow;
  }
  TERSOR_DEVICE RowPlace row(unsigned chunk, bool aligned) const {
    const std::size_t at = position(chunk);
    return {at, at < count ? count - at : 0, aligned};
  }
};

/// Calls visit(unit) for each unit of this warp.
template <class Block, class Visit>
TERSOR_DEVICE void for_each_unit(const Block& block, std::uint32_t units, const Visit& visit) {
  const std::size_t stride = static_cast<std::size_t>(block.blocks()) * block.warps();
  for (std::size_t unit = static_cast<std::size_t>(block.rank()) * block.warps() + block.warp_rank();
       unit < units; unit += stride)
    visit(static_cast<std::uint32_t>(unit));
}

}  // namespace tersor::kernels
