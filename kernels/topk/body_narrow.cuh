// The narrow kernel: finds the k-th key within a range of keys, one digit per launch. If the scan
// found the range, one launch over the candidates finds the remaining 13 bits. Otherwise three
// launches run over the candidates or over all of p. If the scan's threshold missed but a better
// threshold is known, the first launch gathers a new list.
//
// Grid: each block processes parts of 4,096 values (or candidates). The kernel reads 8 bytes per
// candidate. If the kernel gathers or reads all of p, the kernel reads 4 bytes per value (8 if the
// residual does not hold p). A launch without work exits at once.
#pragma once

#include "kernels/topk/body_scan.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Fewer blocks are resident in the first launch, which also gathers.
template <typename G, typename E, unsigned kDigit>
struct TopkNarrowKernel : LaunchBounds<kTopkThreads, kDigit == 0 ? 3 : 4, true> {
  static constexpr unsigned kBins = kTopkDigitBins[kDigit];
  static constexpr unsigned kFirstBin = kTopkDigitBin[kDigit];
  static constexpr unsigned kNextShift =
      kDigit + 1 < kTopkDigits ? kTopkDigitShift[(kDigit + 1) % kTopkDigits] : kTopkDone;
  using Reader = TopkReader<G, E>;
  using Rows = TopkPartRows<Reader>;

  struct Shared {
    SharedArray<std::uint32_t, kBins> bins;
    typename TopkList<Reader>::Shared list;
    TopkBinShared position;
  };

  /// Keys [base, base + (kBins << shift)), divided into bins.
  struct Range {
    std::uint32_t base, shift;
  };

  TopkTask<G, E> task;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    TopkControl* control = task.memory.control;
    const std::uint32_t path = load(&control->path);
    if (path == std::uint32_t(TopkPath::kPoison) || path == kTopkInactive) return;
    if constexpr (kDigit == 0)
      if (path == std::uint32_t(TopkPath::kGather)) return gather(block, shared);
    const Range range{load(&control->base), load(&control->shift)};
    if (range.shift == kTopkDone || (kDigit == 0 && range.shift != kTopkFirstShift)) return;
    clear_bins<kBins>(block, shared.bins);
    if (path == std::uint32_t(TopkPath::kRadix))
      count_tensor(block, shared, range);
    else
      count_list(block, shared, range);
    add_bins<kBins>(block, shared.bins, sums());
    if (!block.is_last(&control->ticket[TopkControl::kNarrowed + kDigit])) return;
    const std::uint64_t rank = load(&control->rank);
    const TopkBinPosition position = find_bin<kBins>(block, shared.position, rank, sums());
    if (block.thread_rank() == 0) narrow(range, rank, position);
  }

 private:
  TERSOR_DEVICE std::uint64_t* sums() const { return task.memory.control->digit + kFirstBin; }

  /// Rebuilds the list. All candidates fit, because the scan counted the keys that reach the new
  /// threshold.
  template <class Block>
  TERSOR_DEVICE void gather(const Block& block, Shared& shared) const {
    TopkControl* control = task.memory.control;
    const Reader reader(task.tensor);
    const TopkList<Reader> list{task.memory, &control->gathered, task.plan.capacity};
    const std::uint32_t threshold = load(&control->threshold);
    for (std::size_t part = block.rank(); part < task.plan.parts; part += block.blocks()) {
      Rows rows;
      rows.reload(reader, part, block.thread_rank());
      list.append(block, shared.list, part, rows, threshold, 0);
    }
  }

  TERSOR_DEVICE static void count(Shared& shared, Range range, std::uint32_t key) {
    const std::uint32_t bin = (key - range.base) >> range.shift;
    if (key >= range.base && bin < kBins) shared.bins.add(bin, 1);
  }

  template <class Block>
  TERSOR_DEVICE void count_tensor(const Block& block, Shared& shared, Range range) const {
    const Reader reader(task.tensor);
    for (std::size_t part = block.rank(); part < task.plan.parts; part += block.blocks()) {
      Rows rows;
      rows.reload(reader, part, block.thread_rank());
      TERSOR_UNROLL
      for (unsigned row = 0; row < Rows::kRows; ++row) {
        TERSOR_UNROLL
        for (unsigned i = 0; i < Rows::kRow; ++i)
          count(shared, range, topk_key(rows.value[row][i]));
      }
    }
  }

  template <class Block>
  TERSOR_DEVICE void count_list(const Block& block, Shared& shared, Range range) const {
    const std::uint64_t listed = load(&task.memory.control->listed);
    const std::uint64_t stride = std::uint64_t{block.blocks()} * block.threads();
    TERSOR_UNROLL_4
    for (std::uint64_t i = std::uint64_t{block.rank()} * block.threads() + block.thread_rank();
         i < listed; i += stride)
      count(shared, range, topk_key(load_input(&task.memory.candidates[i].value)));
  }

  /// Stores the digit found by this launch. Only the first launch can find fewer than k keys. All
  /// nonzero values are sent in this case.
  TERSOR_DEVICE void narrow(Range range, std::uint64_t rank,
                            const TopkBinPosition& position) const {
    TopkControl* control = task.memory.control;
    const bool sends_all = position.total < rank;
    const std::uint32_t key = sends_all ? kTopkMinKey : range.base + (position.bin << range.shift);
    const std::uint64_t left = sends_all ? kTopkAllTies : rank - position.above;
    const bool is_done = sends_all || range.shift == 0;
    store(&control->base, key);
    store(&control->rank, left);
    store(&control->key, key);
    store(&control->ties, static_cast<std::uint32_t>(left));
    store(&control->shift, is_done ? std::uint32_t{kTopkDone} : kNextShift);
  }
};

}  // namespace tersor::kernels
