// Histograms of keys, counted in shared memory and summed in device memory. Also the search for the
// bin of a given rank, counted from the largest key.
#pragma once

#include "kernels/device/memory.cuh"
#include "kernels/topk/device_plan.h"

#include <cstdint>

namespace tersor::kernels {

/// Shared memory for find_bin.
struct TopkBinShared {
  SharedArray<std::uint64_t, 3> position;
};

/// The bin that contains a given rank. `total` counts the values of all bins. The other members are
/// valid if `total` reaches the rank.
struct TopkBinPosition {
  std::uint32_t bin;
  std::uint64_t above;   // values in higher bins
  std::uint64_t inside;  // values in this bin
  std::uint64_t total;
};

template <unsigned kBins, class Block, class Bins>
TERSOR_DEVICE void clear_bins(const Block& block, Bins& bins) {
  for (unsigned bin = block.thread_rank(); bin < kBins; bin += block.threads()) bins.set(bin, 0);
  block.sync();
}

/// Synchronises the block, then adds the block's bins to the bins in device memory.
template <unsigned kBins, class Block, class Bins>
TERSOR_DEVICE void add_bins(const Block& block, const Bins& bins, std::uint64_t* sums) {
  block.sync();
  for (unsigned bin = block.thread_rank(); bin < kBins; bin += block.threads()) {
    const std::uint32_t count = bins.get(bin);
    if (count != 0) atomic_add(sums + bin, std::uint64_t{count});
  }
}

/// Finds the bin of a rank, in a block of kTopkThreads threads. Each thread owns a few neighbouring
/// bins, and thread 0 owns the highest bins. `count_of(bin)` is read twice.
template <unsigned kBins, class Block, class CountOf>
TERSOR_DEVICE TopkBinPosition find_bin(const Block& block, TopkBinShared& shared,
                                       std::uint64_t rank, const CountOf& count_of) {
  constexpr unsigned kMine = (kBins + kTopkThreads - 1) / kTopkThreads;
  const unsigned first = block.thread_rank() * kMine;  // counted from the highest bin
  std::uint64_t mine = 0;
  TERSOR_UNROLL_4
  for (unsigned i = 0; i < kMine; ++i) {
    if (first + i < kBins) mine += count_of(kBins - 1 - (first + i));
  }
  std::uint64_t total;
  std::uint64_t above = block.exclusive_sum(mine, total);
  if (above < rank && rank <= above + mine) {
    unsigned bin = kBins - 1 - first;
    std::uint64_t inside = count_of(bin);
    for (; above + inside < rank; inside = count_of(--bin)) above += inside;
    shared.position.set(0, bin);
    shared.position.set(1, above);
    shared.position.set(2, inside);
  }
  block.sync();
  if (total < rank) return {0, 0, 0, total};
  return {static_cast<std::uint32_t>(shared.position.get(0)), shared.position.get(1),
          shared.position.get(2), total};
}

}  // namespace tersor::kernels
