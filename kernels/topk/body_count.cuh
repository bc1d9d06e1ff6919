// The first half of the emit kernel: counts the keys above and equal to the k-th key in each part
// and in all earlier parts. The counts give each part its offset in the payload.
#pragma once

#include "kernels/topk/body_tensor.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// The selection: all keys above `key`, and the first `ties` keys equal to `key`.
struct TopkCutoff {
  std::uint32_t key;
  std::uint32_t ties;

  TERSOR_DEVICE static TopkCutoff load_from(const TopkControl* control) {
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
    reader.reload_sum(reader.position(part * kTopkPart + index), row);
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

/// Numbers of keys above and equal to the k-th key.
struct TopkCounts {
  std::uint64_t larger = 0, equal = 0;

  TERSOR_DEVICE TopkCounts operator+(TopkCounts other) const {
    return {larger + other.larger, equal + other.equal};
  }
};

/// Counts the keys of parts, first within each part, then in all earlier parts.
template <class Reader>
struct TopkCounter {
  const TopkDeviceMemory& memory;
  const Reader& reader;
  TopkCutoff cutoff;
  bool reads_all;  // True if the list of candidates is incomplete

  /// Counts the keys of the parts [begin, end), and sets each part's counts to the sum over the
  /// block's earlier parts. Returns the sum over all parts. A barrier.
  template <class Block>
  TERSOR_DEVICE TopkCounts count_block(const Block& block, std::size_t begin,
                                       std::size_t end) const {
    for (std::size_t part = begin + block.warp_rank(); part < end; part += block.warps())
      count_part(block.warp(), part);
    block.sync();
    TopkCounts counts;
    for (std::size_t first = begin; first < end; first += block.threads()) {
      const std::size_t part = first + block.thread_rank();
      TopkPartRun* run = memory.runs + part;
      TopkCounts own, all;
      if (part < end) own = {load(&run->larger), load(&run->equal)};
      const std::uint64_t larger = block.exclusive_sum(own.larger, all.larger);
      const std::uint64_t equal = block.exclusive_sum(own.equal, all.equal);
      if (part < end) {
        store(&run->larger, static_cast<std::uint32_t>(counts.larger + larger));
        store(&run->equal, static_cast<std::uint32_t>(counts.equal + equal));
      }
      counts = counts + all;
    }
    block.sync();
    return counts;
  }

  /// Publishes the counts of the block that took ticket `rank`, and returns the sum over all lower
  /// ranks. Blocks of lower rank already run and never wait for this block. A barrier.
  template <class Block>
  TERSOR_DEVICE TopkCounts counts_before(const Block& block, unsigned rank,
                                         TopkCounts counts) const {
    constexpr unsigned kEqualShift = 31;  // fewer keys than 2^31 per block
    constexpr std::uint64_t kKnown = std::uint64_t{1} << 63;
    constexpr std::uint64_t kLarger = (std::uint64_t{1} << kEqualShift) - 1;
    if (block.thread_rank() == 0)
      atomic_add(memory.counts + rank, kKnown | counts.equal << kEqualShift | counts.larger);
    TopkCounts own, all;
    for (unsigned other = block.thread_rank(); other < rank; other += block.threads()) {
      std::uint64_t known;
      while (((known = atomic_add(memory.counts + other, std::uint64_t{0})) & kKnown) == 0) {
      }
      own = own + TopkCounts{known & kLarger, (known & ~kKnown) >> kEqualShift};
    }
    block.exclusive_sum(own.larger, all.larger);
    block.exclusive_sum(own.equal, all.equal);
    return all;
  }

 private:
  template <unsigned kRow>
  TERSOR_DEVICE void count_row(const float (&row)[kRow], std::uint64_t& sum) const {
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i) {
      sum += cutoff.larger(row[i]);
      sum += std::uint64_t{cutoff.equal(row[i])} << 32;
    }
  }

  template <class Warp>
  TERSOR_DEVICE void count_part(const Warp& warp, std::size_t part) const {
    TopkPartRun* run = memory.runs + part;
    std::uint64_t sum = 0;  // low half: larger keys; high half: equal keys
    const auto count = [&](const auto& row, unsigned) { count_row(row, sum); };
    if (reads_all)
      for_each_warp_row(warp, reader, part, count);
    else
      for_each_warp_candidate(warp, memory, {load(&run->base), load(&run->count), 0, 0, 0}, count);
    sum = warp.sum(sum);
    if (warp.thread_rank() != 0) return;
    store(&run->larger, static_cast<std::uint32_t>(sum));
    store(&run->equal, static_cast<std::uint32_t>(sum >> 32));
  }
};

}  // namespace tersor::kernels
