// The checksums of a reducing kernel, summed from the words that its threads read and write.
#pragma once

#include "kernels/device/frames.cuh"
#include "kernels/device/instructions.cuh"
#include "kernels/device/row.cuh"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tersor::kernels {

/// The number of frames that a kernel sums from registers. Their sums take up to 18 KiB of shared
/// memory per block.
constexpr unsigned kHeldFrames = 8;

/// A thread's sums of the one or two columns of its words, each a folded number plus a multiple of
/// the prime, so that two more products can be added without a sign or an overflow.
template <class Held>
struct alignas(8 * Held::kColumns) ColumnSums {
  static constexpr std::uint64_t kZero = 3 * kChecksumPrime;  // products are above -2^62
  std::uint64_t column[Held::kColumns];

  TERSOR_DEVICE static ColumnSums zero() {
    ColumnSums sums;
    TERSOR_UNROLL
    for (std::uint64_t& column : sums.column) column = kZero;
    return sums;
  }
};
/// The column sums of a block. In shared memory, because the rest of the kernel needs the
/// registers.
template <class Held, unsigned kThreads>
struct UnitColumns : SharedArray<ColumnSums<Held>, (1 + kHeldFrames) * kThreads> {};

/// A block's sums of the words that its threads hold of a unit of each frame. Sum 0 is of the
/// written frame, and sum 1 + i is of frame i. The words have the same place in all frames. Columns
/// end when a unit is in another group. If a call reads more frames, only sum 0 exists.
template <class Block, class Reads, class Written, class Held, unsigned kThreads>
class UnitSums {
 public:
  static constexpr unsigned kWords = Held::kWords * Held::kColumns;
  using Rows = RowBytes<4 * Held::kColumns>[Held::kWords];  // a row's words, one of each column

  TERSOR_DEVICE UnitSums(const Block& block, const Reads& reads, const Written& written,
                         UnitColumns<Held, kThreads>& columns)
      : block_(block), reads_(reads), written_(written), columns_(columns) {
    for (unsigned i = 0; i < count(); ++i) columns_.set(at(first() + i), Columns::zero());
  }

  TERSOR_DEVICE bool sums_reads() const { return held_frames() != 0; }
  /// Number of sums.
  TERSOR_DEVICE unsigned count() const { return 1 + held_frames() - first(); }

  /// Begins a unit at byte `begin` of the payloads. True if the threads must call `add`.
  TERSOR_DEVICE bool start(std::size_t begin, bool is_whole) {
    const std::uint64_t word = (sizeof(FrameHeader) + begin) / sizeof(std::uint32_t);
    const auto in_group = static_cast<unsigned>(word % kChecksumGroup);
    if (count() == 0 || !is_whole || in_group + kWords * kWarpThreads > kChecksumGroup)
      return false;
    const std::uint32_t key = static_cast<std::uint32_t>(word / kChecksumGroup) * kChecksumColumns +
                              in_group % kChecksumColumns;
    if (key != key_) end();
    key_ = key;
    row_ = (in_group + own()) / kChecksumColumns;
    return true;
  }

  /// The weights of this thread's words of the unit.
  struct Weights {
    ThreadWeights::Four four[(Held::kWords + kChecksumProducts - 1) / kChecksumProducts];
  };
  TERSOR_DEVICE Weights weights() const {
    Weights weights;
    const auto* from = kDeviceThreadWeights<Held::kStride>.of + row_;
    for (auto& four : weights.four) {
      four = load(from);
      from += kChecksumProducts * Held::kStride;
    }
    return weights;
  }

  TERSOR_DEVICE void add_written(const Rows& rows) const {
    if (written_.is_due()) add(0, rows, weights());
  }
  /// Adds the words of the unit that this thread holds.
  TERSOR_DEVICE void add(unsigned sum, const Rows& rows, const Weights& weights) const {
    std::uint32_t words[kWords];
    static_assert(sizeof words == sizeof rows);
    std::memcpy(words, &rows, sizeof words);
    Columns sums = columns_.get(at(sum));
    TERSOR_UNROLL
    for (unsigned i = 0; i < kWords; ++i) {
      std::uint64_t& column = sums.column[i % Held::kColumns];
      const unsigned row = i / Held::kColumns;
      column = wide_multiply_add(
          words[i], weights.four[row / kChecksumProducts].weight[row % kChecksumProducts], column);
      if (row % 2 == 1) column = fold_number(column) + Columns::kZero;
    }
    columns_.set(at(sum), sums);
  }

  /// Adds the bytes [begin, end) of all payloads, multiples of 8. Call in one warp.
  TERSOR_DEVICE void add_bytes(std::size_t begin, std::size_t end) const {
    TERSOR_KEEP_LOOP
    for (unsigned i = 0; i < count(); ++i) part(i).add_bytes(begin, end);
  }

  /// One of count() sums.
  struct Part {
    const UnitSums& sums;
    unsigned sum;

    TERSOR_DEVICE void add_bytes(std::size_t begin, std::size_t end) const {
      if (sum == 0) return sums.written_.add_bytes(begin, end);
      sums.reads_.add_bytes(begin, end, sum - 1);
    }
  };
  TERSOR_DEVICE Part part(unsigned index) const { return {*this, first() + index}; }

  /// Ends all columns.
  TERSOR_DEVICE void end() {
    if (key_ == kNone) return;
    constexpr unsigned kGroups = ChecksumNumbers::kPowers / kChecksumColumns;
    const std::uint32_t group = key_ / kChecksumColumns;
    const auto* powers = kDeviceChecksumNumbers.power[0] + group % kGroups * kChecksumColumns +
                         (key_ + own()) % kChecksumColumns;
    TERSOR_KEEP_LOOP
    for (unsigned i = 0; i < count(); ++i) {
      const unsigned sum = first() + i;
      const Columns sums = columns_.get(at(sum));
      std::uint64_t all = 0;
      TERSOR_UNROLL
      for (unsigned k = 0; k < Held::kColumns; ++k)
        all = fold_number(all + multiply_number(fold_number(sums.column[k]), load(powers + k)));
      all = times_far_powers(all, group / kGroups);
      columns_.set(at(sum), Columns::zero());
      if (sum == 0)
        written_.add(all);
      else
        reads_.add(sum - 1, all);
    }
    key_ = kNone;
  }

 private:
  using Columns = ColumnSums<Held>;
  static constexpr std::uint32_t kNone = ~0u;
  static_assert(Held::kWords % 2 == 0 && Held::kGap == 1);

  // Computed from parameters each time, because the frames' loads need the registers.
  TERSOR_DEVICE unsigned first() const { return written_.is_due() ? 0 : 1; }
  TERSOR_DEVICE unsigned held_frames() const {
    return reads_.frames() <= kHeldFrames ? reads_.frames() : 0;
  }
  /// The thread's first word of a unit.
  TERSOR_DEVICE unsigned own() const { return block_.warp().thread_rank() * Held::kColumns; }
  TERSOR_DEVICE unsigned at(unsigned sum) const { return sum * kThreads + block_.thread_rank(); }

  const Block& block_;
  const Reads& reads_;
  const Written& written_;
  UnitColumns<Held, kThreads>& columns_;
  std::uint32_t key_ = kNone;  // of the group, and the column of the unit's first word
  unsigned row_ = 0;           // of this thread's first word, in the group
};

}  // namespace tersor::kernels
