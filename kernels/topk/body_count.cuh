// The count kernel: counts the keys above and equal to the k-th key, first within each part, then
// in all earlier parts. The counts give each part its offset in the payload.
//
// Grid: blocks of 256 threads. Each block processes a contiguous range of parts, one warp per part.
// The kernel reads 8 bytes per candidate. If the kernel reads all of p, the kernel reads 4 bytes
// per value (8 if the residual does not hold p).
#pragma once

#include "kernels/topk/body_tensor.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// The selection: all keys above `key`, and the first `ties` keys equal to `key`.
struct TopkCut {
  std::uint32_t key;
  std::uint32_t ties;

  TERSOR_DEVICE static TopkCut load_from(const TopkControl* control) {
    return {load(&control->key), load(&control->ties)};
  }
  TERSOR_DEVICE bool larger(float p) const { return topk_key(p) > key; }
  TERSOR_DEVICE bool equal(float p) const { return topk_key(p) == key; }

  /// Returns the number of sent values among `larger` + `equal` consecutive keys.
  TERSOR_DEVICE std::uint64_t sent(std::uint64_t larger, std::uint64_t equal) const {
    return larger + (equal < ties ? equal : ties);
  }
};

/// Calls visit(row, index) for the values of a part in ascending order, one row per thread at a
/// time. `index` is the index within the part of the thread's first value. All threads of the warp
/// make the same number of calls.
template <class Reader, class Warp, class Visit>
TERSOR_DEVICE void for_each_warp_row(const Warp& warp, const Reader& reader, std::size_t part,
                                     const Visit& visit) {
  constexpr unsigned kRow = Reader::kRow;
  for (unsigned first = 0; first < kTopkPart; first += 32 * kRow) {
    const unsigned index = first + warp.thread_rank() * kRow;
    float row[kRow];
    reader.load_sum_again(reader.position(part * kTopkPart + index), row);
    visit(row, index);
  }
}

/// Like for_each_warp_row, for the candidates of a part: a row is a single candidate, and `index`
/// is the candidate's index.
template <class Warp, class Visit>
TERSOR_DEVICE void for_each_warp_candidate(const Warp& warp, const TopkDeviceMemory& memory,
                                           const TopkPartRun& run, const Visit& visit) {
  for (unsigned first = 0; first < run.count; first += 32) {
    const unsigned position = first + warp.thread_rank();
    Words64 words = {{0, 0}};
    if (position < run.count)
      words = load_input(reinterpret_cast<const Words64*>(memory.candidates + run.base + position));
    const float row[1] = {float_of(words.word[0])};
    visit(row, words.word[1]);
  }
}

template <typename G, typename E>
struct TopkCountKernel {
  static constexpr unsigned kThreads = kTopkThreads;
  static constexpr unsigned kResident = 4;
  static constexpr bool kScans = true;
  using Reader = TopkReader<G, E>;
  struct Shared {};

  TopkTask<G, E> task;
  std::size_t block_parts;  // parts per block

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    TopkControl* control = task.memory.control;
    const std::uint32_t path = load(&control->path);
    if (path == std::uint32_t(TopkPath::kPoison) || path == kTopkIdle) return;
    const TopkCut cut = TopkCut::load_from(control);
    const std::size_t begin = block.rank() * block_parts;
    const std::size_t end =
        begin + block_parts < task.plan.parts ? begin + block_parts : task.plan.parts;
    const Reader reader(task.tensor);
    for (std::size_t part = begin + block.warp_rank(); part < end; part += block.warps())
      count_part(block.warp(), reader, part, cut, path == std::uint32_t(TopkPath::kRadix));
    block.sync();
    add_up_parts(block, begin, end);
    if (!block.is_last(&control->ticket[TopkControl::kCounted])) return;
    add_up_blocks(block, cut);
  }

 private:
  template <unsigned kRow>
  TERSOR_DEVICE static void count_row(const float (&row)[kRow], TopkCut cut, std::uint64_t& sum) {
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i) {
      sum += cut.larger(row[i]);
      sum += std::uint64_t{cut.equal(row[i])} << 32;
    }
  }

  template <class Warp>
  TERSOR_DEVICE void count_part(const Warp& warp, const Reader& reader, std::size_t part,
                                TopkCut cut, bool reads_all) const {
    TopkPartRun* run = task.memory.runs + part;
    std::uint64_t sum = 0;  // low half: larger keys; high half: equal keys
    const auto count = [&](const auto& row, unsigned) { count_row(row, cut, sum); };
    if (reads_all)
      for_each_warp_row(warp, reader, part, count);
    else
      for_each_warp_candidate(warp, task.memory, {load(&run->base), load(&run->count), 0, 0, 0},
                              count);
    sum = warp.sum(sum);
    if (warp.thread_rank() != 0) return;
    store(&run->larger, static_cast<std::uint32_t>(sum));
    store(&run->equal, static_cast<std::uint32_t>(sum >> 32));
  }

  /// Replaces the counts of the block's parts by prefix sums, and stores the block's totals.
  template <class Block>
  TERSOR_DEVICE void add_up_parts(const Block& block, std::size_t begin, std::size_t end) const {
    std::uint64_t larger = 0, equal = 0;
    for (std::size_t first = begin; first < end; first += block.threads()) {
      const std::size_t part = first + block.thread_rank();
      TopkPartRun* run = task.memory.runs + part;
      std::uint64_t all_larger, all_equal;
      const std::uint64_t before_larger =
          block.exclusive_sum(part < end ? load(&run->larger) : 0, all_larger);
      const std::uint64_t before_equal =
          block.exclusive_sum(part < end ? load(&run->equal) : 0, all_equal);
      if (part < end) {
        store(&run->larger, static_cast<std::uint32_t>(larger + before_larger));
        store(&run->equal, static_cast<std::uint32_t>(equal + before_equal));
      }
      larger += all_larger;
      equal += all_equal;
    }
    if (block.thread_rank() != 0) return;
    store(&task.memory.bases[block.rank()].larger, larger);
    store(&task.memory.bases[block.rank()].equal, equal);
  }

  /// Replaces the totals of all blocks by prefix sums.
  template <class Block>
  TERSOR_DEVICE void add_up_blocks(const Block& block, TopkCut cut) const {
    std::uint64_t larger = 0, equal = 0;
    for (unsigned first = 0; first < block.blocks(); first += block.threads()) {
      const unsigned i = first + block.thread_rank();
      TopkBlockBase* base = task.memory.bases + i;
      std::uint64_t all_larger, all_equal;
      const std::uint64_t before_larger =
          block.exclusive_sum(i < block.blocks() ? load_fresh(&base->larger) : 0, all_larger);
      const std::uint64_t before_equal =
          block.exclusive_sum(i < block.blocks() ? load_fresh(&base->equal) : 0, all_equal);
      if (i < block.blocks()) {
        store(&base->larger, larger + before_larger);
        store(&base->equal, equal + before_equal);
      }
      larger += all_larger;
      equal += all_equal;
    }
    if (block.thread_rank() == 0)
      store(&task.memory.control->selected, static_cast<std::uint32_t>(cut.sent(larger, equal)));
  }
};

}  // namespace tersor::kernels
