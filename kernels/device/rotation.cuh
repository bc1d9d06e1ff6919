// Blocks of 256 values in the registers of eight neighbouring threads: the transform T, the tree
// sum, random signs, and codes stored as bit planes. A warp processes four blocks at a time.
// Sixteen blocks share a round of random numbers. All threads of a warp must call every function
// here together.
//
// A block is eight rows of 32 values. T and the codes need all of a row in one thread (a run), and
// also the same position of all rows in one thread. Values are transposed between the two in shared
// memory, at half an instruction per value. A stage of T across threads would take two instructions
// per value by shuffles, and takes one here.
#pragma once

#include "kernels/device/instructions.cuh"
#include "kernels/device/row.cuh"
#include "kernels/scalar/rotation.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

constexpr unsigned kRotationThreads = 8;  // threads per block
constexpr unsigned kRotationRows = 8;     // rows per thread
constexpr unsigned kRotationRow = 4;      // neighbouring values per row
constexpr unsigned kRotationValues = kRotationRows * kRotationRow;
constexpr unsigned kRotationBlocksPerWarp = 4;  // blocks per warp
constexpr unsigned kRotationUnit = 16;  // blocks whose random numbers are generated together

/// 32 values of a block in thread t: row t as a run, or four values of each row r at [4 · r].
using RotatedValues = float[kRotationValues];

/// The four values of a row held by thread t. kContiguous: contiguous values, for moving to and
/// from memory. kStrided: every fourth value, for packing codes.
enum class RowLayout : std::uint8_t { kContiguous, kStrided };

template <RowLayout kLayout>
constexpr unsigned position_in_row(unsigned thread, unsigned q) {
  return kLayout == RowLayout::kContiguous ? kRotationRow * thread + q
                                           : kRotationRow * q + thread % 2 * 16 + thread / 2;
}

/// The positions of a thread's rows of a block within the segment.
struct RotationPosition {
  std::size_t first;  // of the block
  std::size_t count;  // of the segment
  unsigned thread;    // within the group of eight
  bool is_whole;      // True if all four blocks of the warp are whole

  /// False after the segment's end.
  TERSOR_DEVICE bool exists() const { return first < count; }
  /// The block's index, or 0, which is safe to read, after the segment's end.
  TERSOR_DEVICE std::size_t block() const { return exists() ? first / kRotationBlock : 0; }
  TERSOR_DEVICE std::size_t offset() const { return first + thread * kRotationRow; }
  TERSOR_DEVICE RowPosition row(unsigned r) const {
    const std::size_t at = offset() + r * kRotationThreads * kRotationRow;
    return {at, at < count ? count - at : 0, false};
  }
};

/// Loads all rows of a thread: at once for whole and aligned blocks, otherwise value by value.
template <Load kLoad, typename T>
TERSOR_DEVICE void load_rotated(const T* values, const RotationPosition& position,
                                RotatedValues& x) {
  using Bytes = RowBytes<kRotationRow * sizeof(T)>;
  const bool at_once = position.is_whole && is_aligned_for<T, kRotationRow>(values);
  float row[kRotationRows][kRotationRow];
  if (at_once) {
    const T* from = values + position.offset();
    TERSOR_UNROLL
    for (unsigned r = 0; r < kRotationRows; ++r)
      unpack_row<T>(Bytes::template load_from<kLoad>(from + r * kRotationValues), row[r]);
  } else {
    TERSOR_UNROLL
    for (unsigned r = 0; r < kRotationRows; ++r) load_row<kLoad>(values, position.row(r), row[r]);
  }
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRotationValues; ++i) x[i] = row[i / kRotationRow][i % kRotationRow];
}

template <typename T>
TERSOR_DEVICE void store_rotated(const RotatedValues& x, T* values,
                                 const RotationPosition& position) {
  float row[kRotationRows][kRotationRow];
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRotationValues; ++i) row[i / kRotationRow][i % kRotationRow] = x[i];
  if (position.is_whole && is_aligned_for<T, kRotationRow>(values)) {
    T* to = values + position.offset();
    TERSOR_UNROLL
    for (unsigned r = 0; r < kRotationRows; ++r)
      pack_row<T>(row[r]).store_to(to + r * kRotationValues);
    return;
  }
  TERSOR_UNROLL
  for (unsigned r = 0; r < kRotationRows; ++r) store_row(row[r], values, position.row(r));
}

/// (x_i, x_{i + h}) ← (x_i + x_{i + h}, x_i − x_{i + h}) among the values of a thread.
template <unsigned kDistance>
TERSOR_DEVICE void rotate_within(RotatedValues& x) {
  TERSOR_UNROLL
  for (unsigned pair = 0; pair < kRotationValues / 2; ++pair) {
    const unsigned i = pair / kDistance * 2 * kDistance + pair % kDistance;
    const float low = x[i], high = x[i + kDistance];
    x[i] = low + high;
    x[i + kDistance] = low - high;
  }
}

/// The signs of a thread's values, by rows (kContiguous).
struct RotationSigns {
  std::uint32_t word[kRotationRows];  // word of row r, shifted: the four signs are in the top bits

  TERSOR_DEVICE void flip(RotatedValues& x) const {
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRotationValues; ++i) {
      const std::uint32_t sign = word[i / kRotationRow] << (3 - i % kRotationRow) & 0x80000000u;
      x[i] = float_of(bits_of(x[i]) ^ sign);
    }
  }
};

/// Shared memory of a warp, used to transpose values and codes of four blocks and to hold the signs
/// of 16 blocks. Rows are padded by one entry to avoid bank conflicts.
struct RotationSpace {
  static constexpr unsigned kRow = kRotationThreads + 1;
  static constexpr unsigned kBlock = kRotationRows * kRow + 1;
  Words128 values[kRotationBlocksPerWarp * kBlock];
  Words128 signs[2 * kRotationUnit];
};

/// A unit of 16 blocks. Each thread generates the random words of half a block.
template <class Warp>
class Rotation {
 public:
  /// `signs`: the signs of the unit's blocks.
  TERSOR_DEVICE Rotation(const Warp& warp, RotationSpace& space, const Signs& signs)
      : warp_(warp),
        thread_(warp.thread_rank() % kRotationThreads),
        block_(space.values + warp.thread_rank() / kRotationThreads * RotationSpace::kBlock),
        signs_(space.signs) {
    const unsigned thread = warp.thread_rank();
    const PhiloxWords generated =
        sign_words(signs, signs.first_index + thread / 2 * kRotationBlock, thread % 2);
    warp.sync();
    store(signs_ + thread,
          Words128{{generated.word[0], generated.word[1], generated.word[2], generated.word[3]}});
    warp.sync();
  }

  /// Returns the signs of this thread's values in block `block` of the 16, a block of the thread's
  /// group.
  TERSOR_DEVICE RotationSigns signs(unsigned block) const {
    RotationSigns signs;
    TERSOR_UNROLL
    for (unsigned half = 0; half < 2; ++half) {
      const Words128 generated = load(signs_ + 2 * block + half);
      TERSOR_UNROLL
      for (unsigned i = 0; i < 4; ++i)
        signs.word[4 * half + i] = generated.word[i] << (28 - thread_ * kRotationRow);
    }
    return signs;
  }

  /// Calls visit(block, position) for this thread's blocks of the unit, which starts at value
  /// `first` of `count`. The whole warp makes the same calls, even for blocks after the segment's
  /// end.
  template <class Visit>
  TERSOR_DEVICE void for_each_block(std::size_t first, std::size_t count,
                                    const Visit& visit) const {
    constexpr unsigned kRoundValues = kRotationBlocksPerWarp * kRotationBlock;
    const unsigned group = warp_.thread_rank() / kRotationThreads;
    _Pragma("unroll 1") for (unsigned round = 0; round < kRotationUnit / kRotationBlocksPerWarp;
                             ++round) {
      const std::size_t at = first + round * kRoundValues;
      if (at >= count) return;  // the whole warp returns
      visit(round * kRotationBlocksPerWarp + group,
            RotationPosition{at + group * kRotationBlock, count, thread_,
                             count - at >= kRoundValues});
    }
  }

  /// Applies T to values stored by rows, and returns rows in another layout.
  template <RowLayout kFrom, RowLayout kTo>
  TERSOR_DEVICE void rotate(RotatedValues& x) const {
    rows_to_runs<kFrom>(x);
    rotate_runs<kTo>(x);
  }

  /// Applies T to values stored as runs, and returns rows.
  template <RowLayout kTo>
  TERSOR_DEVICE void rotate_runs(RotatedValues& x) const {
    rotate_within<1>(x);
    rotate_within<2>(x);
    rotate_within<4>(x);
    rotate_within<8>(x);
    rotate_within<16>(x);
    runs_to_rows<kTo>(x);
    rotate_within<kRotationRow>(x);
    rotate_within<2 * kRotationRow>(x);
    rotate_within<4 * kRotationRow>(x);
  }

  /// Returns the tree sum of values stored by strided rows, to every thread of the block.
  TERSOR_DEVICE float tree_sum(RotatedValues& s) const {
    add_halves<kRotationValues / 2>(s);
    TERSOR_UNROLL
    for (unsigned q = 0; q < kRotationRow; ++q) add_other(s[q], 1);
    const float low = s[0] + s[2], high = s[1] + s[3];
    float sum = low + high;
    add_other(sum, 4);
    add_other(sum, 2);
    return sum;
  }

  /// Returns the bits of the largest magnitude of a block. If the block has a NaN, the bits exceed
  /// those of infinity.
  TERSOR_DEVICE std::uint32_t maximum(const RotatedValues& x) const {
    float most = 0.0f;
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRotationValues; ++i) most = larger_magnitude(most, x[i]);
    TERSOR_UNROLL
    for (unsigned mask = kRotationThreads / 2; mask != 0; mask /= 2)
      most = larger_magnitude(most, float_of(warp_.shuffle_xor(bits_of(most), mask)));
    return bits_of(most);
  }

  /// Converts four 4-bit codes of each strided row to the words of this thread's row. Code 4 ·
  /// n + w is at bit 4 · n of word w.
  TERSOR_DEVICE Words128 codes_of_row(const std::uint16_t (&row_codes)[kRotationRows]) const {
    warp_.sync();
    TERSOR_UNROLL
    for (unsigned r = 0; r < kRotationRows; ++r)
      store(reinterpret_cast<std::uint16_t*>(block_ + r) + thread_, row_codes[r]);
    warp_.sync();
    return load(block_ + thread_);
  }

 private:
  template <RowLayout kLayout>
  TERSOR_DEVICE void rows_to_runs(RotatedValues& x) const {
    warp_.sync();
    TERSOR_UNROLL
    for (unsigned r = 0; r < kRotationRows; ++r)
      store(block_ + r * RotationSpace::kRow + thread_,
            Words128{{bits_of(x[4 * r]), bits_of(x[4 * r + 1]), bits_of(x[4 * r + 2]),
                      bits_of(x[4 * r + 3])}});
    warp_.sync();
    TERSOR_UNROLL
    for (unsigned thread = 0; thread < kRotationThreads; ++thread) {
      const Words128 four = load(block_ + thread_ * RotationSpace::kRow + thread);
      TERSOR_UNROLL
      for (unsigned q = 0; q < kRotationRow; ++q)
        x[position_in_row<kLayout>(thread, q)] = float_of(four.word[q]);
    }
  }

  template <RowLayout kLayout>
  TERSOR_DEVICE void runs_to_rows(RotatedValues& x) const {
    warp_.sync();
    TERSOR_UNROLL
    for (unsigned thread = 0; thread < kRotationThreads; ++thread) {
      Words128 four;
      TERSOR_UNROLL
      for (unsigned q = 0; q < kRotationRow; ++q)
        four.word[q] = bits_of(x[position_in_row<kLayout>(thread, q)]);
      store(block_ + thread_ * RotationSpace::kRow + thread, four);
    }
    warp_.sync();
    TERSOR_UNROLL
    for (unsigned r = 0; r < kRotationRows; ++r) {
      const Words128 four = load(block_ + r * RotationSpace::kRow + thread_);
      TERSOR_UNROLL
      for (unsigned q = 0; q < kRotationRow; ++q) x[4 * r + q] = float_of(four.word[q]);
    }
  }

  /// Sums a thread's own values down to one row.
  template <unsigned kHalf>
  TERSOR_DEVICE static void add_halves(RotatedValues& s) {
    if constexpr (kHalf >= kRotationRow) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < kHalf; ++i) s[i] += s[i + kHalf];
      add_halves<kHalf / 2>(s);
    }
  }

  TERSOR_DEVICE void add_other(float& sum, unsigned mask) const {
    sum += float_of(warp_.shuffle_xor(bits_of(sum), mask));
  }

  const Warp& warp_;
  unsigned thread_;
  Words128* block_;
  Words128* signs_;
};

}  // namespace tersor::kernels
