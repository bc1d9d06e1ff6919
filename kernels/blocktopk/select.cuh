// Selects the k largest of a block of 4,096 values on a device, with 16 values per thread in
// registers. The digits of the k-th key (11, 10 and 10 bits) are found by counting in shared
// memory. The selected values are then numbered in ascending order of index.
#pragma once

#include "kernels/blocktopk/lists.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

constexpr unsigned kBlocktopkRow = 4;   // contiguous values per row
constexpr unsigned kBlocktopkRows = 4;  // rows per thread
constexpr unsigned kBlocktopkStride = kBlocktopkThreads * kBlocktopkRow;
static_assert(kBlocktopkRows * kBlocktopkStride == kBlocktopkValues);

/// A thread's values of a block: row r begins at index r · kBlocktopkStride + 4 · thread.
using BlocktopkRows = float[kBlocktopkRows][kBlocktopkRow];

TERSOR_DEVICE unsigned blocktopk_position(unsigned thread, unsigned row, unsigned i) {
  return row * kBlocktopkStride + thread * kBlocktopkRow + i;
}

/// Counts per row, 16 bits each. A single scan then numbers the values of all threads.
struct BlocktopkCounts {
  std::uint64_t fields = 0;

  TERSOR_DEVICE void add(unsigned row) { fields += std::uint64_t{1} << 16 * row; }
  TERSOR_DEVICE unsigned of(unsigned row) const {
    return static_cast<unsigned>(fields >> 16 * row & 0xffffu);
  }
  TERSOR_DEVICE unsigned sum() const { return of(0) + of(1) + of(2) + of(3); }
};

/// Numbers the values with has(row, i) in the order of their indices. Then calls numbered(row, i,
/// number) for each of these values. Returns the total.
template <class Block, class Has, class Numbered>
TERSOR_DEVICE unsigned number_values(const Block& block, const Has& has, const Numbered& numbered) {
  BlocktopkCounts own, total;
  TERSOR_UNROLL
  for (unsigned row = 0; row < kBlocktopkRows; ++row) {
    TERSOR_UNROLL
    for (unsigned i = 0; i < kBlocktopkRow; ++i)
      if (has(row, i)) own.add(row);
  }
  const BlocktopkCounts before{block.exclusive_sum(own.fields, total.fields)};
  unsigned base = 0;
  TERSOR_UNROLL
  for (unsigned row = 0; row < kBlocktopkRows; ++row) {
    unsigned number = base + before.of(row);
    TERSOR_UNROLL
    for (unsigned i = 0; i < kBlocktopkRow; ++i)
      if (has(row, i)) numbered(row, i, number++);
    base += total.of(row);
  }
  return total.sum();
}

/// The selection: keys above `key`, and the first `ties` keys equal to `key`.
struct BlocktopkCut {
  std::uint32_t key;
  std::uint32_t ties;
};

class BlocktopkSelect {
 public:
  static constexpr unsigned kBins = 1u << 11;
  struct Shared {
    SharedArray<std::uint32_t, kBins> bins;
    SharedArray<std::uint32_t, 2> found;  // bin of the k-th key, and the count above
  };

  /// Returns the cut of the `selected` largest values. Contains barriers. Zeros are not counted. If
  /// fewer than `selected` values are nonzero, all nonzero values are above the cut.
  template <class Block>
  TERSOR_DEVICE static BlocktopkCut cut(const Block& block, Shared& shared, const BlocktopkRows& p,
                                        std::uint32_t selected) {
    BlocktopkCut cut{0, selected};
    if (!narrow<20, 11>(block, shared, p, cut)) return {0, 0};
    narrow<10, 10>(block, shared, p, cut);
    narrow<0, 10>(block, shared, p, cut);
    return cut;
  }

 private:
  /// Finds the next digit of the key, after the upper digits. Returns false if fewer than `ties`
  /// keys are left.
  template <unsigned kShift, unsigned kBits, class Block>
  TERSOR_DEVICE static bool narrow(const Block& block, Shared& shared, const BlocktopkRows& p,
                                   BlocktopkCut& cut) {
    constexpr unsigned kDigits = 1u << kBits;
    for (unsigned bin = block.thread_rank(); bin < kDigits; bin += Block::threads())
      shared.bins.set(bin, 0);
    block.sync();
    TERSOR_UNROLL
    for (unsigned row = 0; row < kBlocktopkRows; ++row) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < kBlocktopkRow; ++i) {
        const std::uint32_t key = magnitude_bits(p[row][i]);
        if (key != 0 && key >> (kShift + kBits) == cut.key)
          shared.bins.add(key >> kShift & (kDigits - 1), 1u);
      }
    }
    block.sync();
    const bool found = find<kDigits>(block, shared, cut.ties);
    block.sync();
    if (!found) return false;
    cut.key = cut.key << kBits | shared.found.get(0);
    cut.ties -= shared.found.get(1);
    block.sync();
    return true;
  }

  /// Finds the bin that contains the key. Each thread owns contiguous bins, and thread 0 owns the
  /// highest bins.
  template <unsigned kDigits, class Block>
  TERSOR_DEVICE static bool find(const Block& block, Shared& shared, std::uint32_t ties) {
    constexpr unsigned kOwn = kDigits / kBlocktopkThreads;
    const unsigned highest = kDigits - 1 - block.thread_rank() * kOwn;
    std::uint32_t own = 0;
    TERSOR_UNROLL
    for (unsigned i = 0; i < kOwn; ++i) own += shared.bins.get(highest - i);
    std::uint64_t total;
    auto above = static_cast<std::uint32_t>(block.exclusive_sum(own, total));
    if (above < ties && above + own >= ties) {
      unsigned bin = highest;
      for (; above + shared.bins.get(bin) < ties; --bin) above += shared.bins.get(bin);
      shared.found.set(0, bin);
      shared.found.set(1, above);
    }
    return total >= ties;
  }
};

}  // namespace tersor::kernels
