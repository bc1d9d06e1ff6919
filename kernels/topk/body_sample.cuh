// The sample kernel: finds a threshold almost surely a little below the k-th key of the current p.
//
// Grid: each thread reads a 16-byte row of the gradient at a jittered offset in one of equal
// strata. If the segment is small, all rows are read. The kernel reads gradient and residual of the
// sampled rows and writes p to the workspace. The last block finds the order statistic with two
// histograms: coarse bins over all samples, then fine bins within one coarse bin.
#pragma once

#include "kernels/scalar/philox.h"
#include "kernels/topk/body_bins.cuh"
#include "kernels/topk/body_tensor.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// The last block reads all samples, so its threads must have many loads in flight. More than 512
/// threads would have too few registers.
template <typename G, typename E>
struct TopkSampleKernel : LaunchBounds<512, 1, true> {
  using Reader = TopkReader<G, E>;
  static constexpr unsigned kRow = Reader::kRow;

  struct Shared {
    SharedArray<std::uint32_t, kTopkFineBins> bins;
    TopkBinShared position;
  };
  static_assert(kTopkCoarseBins <= kTopkFineBins);

  TopkTask<G, E> task;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    TopkControl* control = task.memory.control;
    const bool inactive = task.tensor.active != nullptr && load(task.tensor.active) == 0;
    if (inactive) {
      if (block.rank() == 0 && block.thread_rank() == 0) store(&control->path, kTopkInactive);
      return;
    }
    clear_bins<kTopkCoarseBins>(block, shared.bins);
    sample(block, shared);
    add_bins<kTopkCoarseBins>(block, shared.bins, control->coarse);
    if (!block.is_last(&control->ticket[TopkControl::kSampled])) return;
    const std::uint32_t threshold = find_threshold(block, shared);
    if (block.thread_rank() != 0) return;
    store(&control->threshold, threshold);
    store(&control->low, threshold > kTopkOctave ? threshold - kTopkOctave : kTopkMinKey);
  }

  TERSOR_DEVICE std::size_t rows() const { return task.plan.samples / kRow; }

 private:
  /// Zeros are not counted because a zero is never sent.
  TERSOR_DEVICE static void count(Shared& shared, std::uint32_t key, std::uint32_t bin) {
    if (key >= kTopkMinKey) shared.bins.add(bin, 1);
  }

  TERSOR_DEVICE std::size_t first_of(std::size_t row) const {
    if (task.plan.samples_all()) return row * kRow;
    const std::size_t stratum = task.tensor.count / rows();
    const std::size_t jitter = splitmix64(row) % (stratum - kRow + 1);
    return (stratum * row + jitter) / kRow * kRow;
  }

  template <class Block>
  TERSOR_DEVICE void sample(const Block& block, Shared& shared) const {
    const Reader reader(task.tensor);
    const std::size_t stride = std::size_t{block.blocks()} * block.threads();
    for (std::size_t row = std::size_t{block.rank()} * block.threads() + block.thread_rank();
         row < rows(); row += stride) {
      float p[kRow];
      reader.load_sum(reader.position(first_of(row)), p);
      store_row(p, task.memory.samples, {row * kRow, kRow, true});
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i)
        count(shared, topk_key(p[i]), topk_key(p[i]) >> kTopkCoarseShift);
    }
  }

  /// Returns the lower edge of the fine bin that contains the rank, or the smallest key if fewer
  /// nonzero values were sampled.
  template <class Block>
  TERSOR_DEVICE std::uint32_t find_threshold(const Block& block, Shared& shared) const {
    const std::uint64_t* coarse = task.memory.control->coarse;
    const TopkBinPosition octant =
        find_bin<kTopkCoarseBins>(block, shared.position, task.plan.rank, coarse);
    if (octant.total < task.plan.rank) return kTopkMinKey;
    clear_bins<kTopkFineBins>(block, shared.bins);
    count_fine(block, shared, octant.bin);
    block.sync();
    const TopkBinPosition fine =
        find_bin<kTopkFineBins>(block, shared.position, task.plan.rank - octant.above, shared.bins);
    const std::uint32_t key = (octant.bin << kTopkCoarseShift) + (fine.bin << kTopkFineShift);
    return key < kTopkMinKey ? kTopkMinKey : key;
  }

  template <class Block>
  TERSOR_DEVICE void count_fine(const Block& block, Shared& shared, std::uint32_t coarse) const {
    constexpr unsigned kRowsInFlight = 32 / kRow;  // independent rows in flight, in 32 registers
    for (std::size_t first = block.thread_rank(); first < rows();
         first += kRowsInFlight * block.threads()) {
      float p[kRowsInFlight][kRow];
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRowsInFlight; ++i) load_sample(first + i * block.threads(), p[i]);
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRowsInFlight; ++i) count_fine_row(shared, coarse, p[i]);
    }
  }

  TERSOR_DEVICE void load_sample(std::size_t row, float (&p)[kRow]) const {
    const bool exists = row < rows();
    load_row<Load::kAny>(static_cast<const float*>(task.memory.samples),
                         {row * kRow, exists ? kRow : 0, exists}, p);
  }

  TERSOR_DEVICE static void count_fine_row(Shared& shared, std::uint32_t coarse,
                                           const float (&p)[kRow]) {
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i) {
      const std::uint32_t key = topk_key(p[i]);
      if (key >> kTopkCoarseShift == coarse)
        count(shared, key, key >> kTopkFineShift & (kTopkFineBins - 1));
    }
  }
};

}  // namespace tersor::kernels
