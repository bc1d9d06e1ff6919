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

/// Loads neighbouring bins of this block.
template <unsigned kBins, unsigned kCount>
TERSOR_DEVICE void load_bins(const SharedArray<std::uint32_t, kBins>& bins, unsigned first,
                             std::uint32_t (&counts)[kCount]) {
  TERSOR_UNROLL
  for (unsigned i = 0; i < kCount; ++i) counts[i] = bins.get(first + i);
}
/// Loads neighbouring bins that all blocks of the launch counted, two per load. Larger counts than
/// any rank become 2^32 - 1.
template <unsigned kCount>
TERSOR_DEVICE void load_bins(const std::uint64_t* sums, unsigned first,
                             std::uint32_t (&counts)[kCount]) {
  const auto saturate = [](std::uint64_t count) {
    return static_cast<std::uint32_t>(count < ~0u ? count : ~0u);
  };
  TERSOR_UNROLL
  for (unsigned i = 0; i < kCount; i += 2) {
    const auto pair = load_fresh(reinterpret_cast<const ulonglong2*>(sums + first + i));
    counts[i] = saturate(pair.x);
    counts[i + 1] = saturate(pair.y);
  }
}

/// Stores the position of the rank if one of the bins below `end` contains the rank. `above` counts
/// the values in the bins from `end` on, and afterwards also the values of these bins.
template <unsigned kCount>
TERSOR_DEVICE void search_bins(TopkBinShared& shared, std::uint64_t rank, unsigned end,
                               const std::uint32_t (&counts)[kCount], std::uint64_t& above) {
  TERSOR_UNROLL
  for (unsigned i = 1; i <= kCount; ++i) {
    const std::uint32_t inside = counts[kCount - i];
    if (above < rank && rank <= above + inside) {
      shared.position.set(0, end - i);
      shared.position.set(1, above);
      shared.position.set(2, inside);
    }
    above += inside;
  }
}

/// Finds the bin of a rank. Each thread has a few neighbouring bins, and thread 0 has the highest
/// bins. At most 16 bins fit into a thread's registers. If the thread has more bins, the registers
/// hold four at once, and the thread with the rank loads its bins again.
template <unsigned kBins, class Block, class Bins>
TERSOR_DEVICE TopkBinPosition find_bin(const Block& block, TopkBinShared& shared,
                                       std::uint64_t rank, const Bins& bins) {
  constexpr unsigned kBinsPerThread = kBins > 2 * Block::threads() ? kBins / Block::threads() : 2;
  constexpr unsigned kBatch = kBinsPerThread > 16 ? 4 : kBinsPerThread;
  static_assert(kBins % kBinsPerThread == 0 && kBins <= kBinsPerThread * Block::threads() &&
                kBinsPerThread % kBatch == 0);
  const unsigned end = kBins - block.thread_rank() * kBinsPerThread;  // of this thread's bins
  std::uint32_t counts[kBatch] = {};
  std::uint64_t own = 0;
  const auto add = [&](unsigned upper) {
    load_bins(bins, end - upper - kBatch, counts);
    TERSOR_UNROLL
    for (const std::uint32_t count : counts) own += count;
  };
  if constexpr (kBatch == kBinsPerThread) {
    if (block.thread_rank() < kBins / kBinsPerThread) add(0);
  } else {
    TERSOR_KEEP_LOOP
    for (unsigned upper = 0; upper < kBinsPerThread; upper += kBatch) add(upper);
  }
  std::uint64_t total;
  std::uint64_t above = block.exclusive_sum(own, total);
  if (above < rank && rank <= above + own) {
    if constexpr (kBatch == kBinsPerThread) {
      search_bins(shared, rank, end, counts, above);
    } else {
      TERSOR_KEEP_LOOP
      for (unsigned upper = 0; upper < kBinsPerThread; upper += kBatch) {
        load_bins(bins, end - upper - kBatch, counts);
        search_bins(shared, rank, end - upper, counts, above);
      }
    }
  }
  block.sync();
  if (total < rank) return {0, 0, 0, total};
  return {static_cast<std::uint32_t>(shared.position.get(0)), shared.position.get(1),
          shared.position.get(2), total};
}

}  // namespace tersor::kernels
