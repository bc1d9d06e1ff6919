// Blocks of 256 values in the registers of eight neighbouring threads: the transform T, the tree
// sum, random signs, and codes by planes of bits. A warp works on four blocks at a time, sixteen of
// which share a round of random numbers. All threads of a warp call everything here together.
//
// A block is eight rows of 32 values. T and the codes need all of a row in one thread (a run), and
// all rows at one place in one thread. Values change between the two in shared memory, for half an
// instruction each: a stage of T among threads would take two by shuffles, and takes one here.
#pragma once

#include "kernels/device/instructions.cuh"
#include "kernels/device/row.cuh"
#include "kernels/scalar/rotation.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

constexpr unsigned kRotationThreads = 8;  // that share a block
constexpr unsigned kRotationRows = 8;     // of a thread
constexpr unsigned kRotationRow = 4;      // values of each, neighbours
constexpr unsigned kRotationValues = kRotationRows * kRotationRow;
constexpr unsigned kRotatedAtOnce = 4;  // blocks of a warp
constexpr unsigned kRotationUnit = 16;  // blocks whose random numbers are made together

/// 32 values of a block in thread t: its row t, as a run; or four of each row r at [4 · r].
using RotatedValues = float[kRotationValues];

/// Which four of a row thread t has: neighbours, as they move to and from memory; or those from
/// which codes are packed, each the fourth behind the other.
enum class RowShare : std::uint8_t { kNeighbours, kFourths };

template <RowShare kShare>
constexpr unsigned place_in_row(unsigned thread, unsigned q) {
  return kShare == RowShare::kNeighbours ? kRotationRow * thread + q
                                         : kRotationRow * q + thread % 2 * 16 + thread / 2;
}

/// Where a thread's rows of a block lie in their segment.
struct RotationPlace {
  std::size_t first;  // of the block
  std::size_t count;  // of the segment
  unsigned thread;    // of the eight
  bool is_whole;      // all four blocks of the warp

  /// False behind the segment's end.
  TERSOR_DEVICE bool is_there() const { return first < count; }
  /// The block's number, and behind the segment's end one that may be read.
  TERSOR_DEVICE std::size_t block() const { return is_there() ? first / kRotationBlock : 0; }
  TERSOR_DEVICE std::size_t position() const { return first + thread * kRotationRow; }
  TERSOR_DEVICE RowPlace row(unsigned r) const {
    const std::size_t at = position() + r * kRotationThreads * kRotationRow;
    return {at, at < count ? count - at : 0, false};
  }
};

/// All rows of a thread: of whole and aligned blocks at once, of others value by value.
template <Load kLoad, typename T>
TERSOR_DEVICE void load_rotated(const T* values, const RotationPlace& place, RotatedValues& x) {
  using Bytes = RowBytes<kRotationRow * sizeof(T)>;
  const bool at_once = place.is_whole && is_aligned_for<T, kRotationRow>(values);
  float row[kRotationRows][kRotationRow];
  if (at_once) {
    const T* from = values + place.position();
    TERSOR_UNROLL
    for (unsigned r = 0; r < kRotationRows; ++r)
      unpack_row<T>(Bytes::template load_from<kLoad>(from + r * kRotationValues), row[r]);
  } else {
    TERSOR_UNROLL
    for (unsigned r = 0; r < kRotationRows; ++r) load_row<kLoad>(values, place.row(r), row[r]);
  }
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRotationValues; ++i) x[i] = row[i / kRotationRow][i % kRotationRow];
}

template <typename T>
TERSOR_DEVICE void store_rotated(const RotatedValues& x, T* values, const RotationPlace& place) {
  float row[kRotationRows][kRotationRow];
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRotationValues; ++i) row[i / kRotationRow][i % kRotationRow] = x[i];
  if (place.is_whole && is_aligned_for<T, kRotationRow>(values)) {
    T* to = values + place.position();
    TERSOR_UNROLL
    for (unsigned r = 0; r < kRotationRows; ++r)
      pack_row<T>(row[r]).store_to(to + r * kRotationValues);
    return;
  }
  TERSOR_UNROLL
  for (unsigned r = 0; r < kRotationRows; ++r) store_row(row[r], values, place.row(r));
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

/// The signs of a thread's values by rows, neighbours.
struct RotationSigns {
  std::uint32_t word[kRotationRows];  // of row r, its four bits on top

  TERSOR_DEVICE void flip(RotatedValues& x) const {
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRotationValues; ++i) {
      const std::uint32_t sign = word[i / kRotationRow] << (3 - i % kRotationRow) & 0x80000000u;
      x[i] = float_of(bits_of(x[i]) ^ sign);
    }
  }
};

/// What a warp changes values and codes of its four blocks in, and keeps the signs of 16 in. Rows
/// lie a place further apart than they are long, so that threads do not meet at a bank.
struct RotationRoom {
  static constexpr unsigned kRow = kRotationThreads + 1;
  static constexpr unsigned kBlock = kRotationRows * kRow + 1;
  Words128 values[kRotatedAtOnce * kBlock];
  Words128 signs[2 * kRotationUnit];
};

/// A unit of 16 blocks as a thread sees it, which makes the random words of half a block.
template <class Warp>
class Rotation {
 public:
  /// `signs`: of the unit's blocks.
  TERSOR_DEVICE Rotation(const Warp& warp, RotationRoom& room, const Signs& signs)
      : warp_(warp),
        thread_(warp.thread_rank() % kRotationThreads),
        block_(room.values + warp.thread_rank() / kRotationThreads * RotationRoom::kBlock),
        signs_(room.signs) {
    const unsigned thread = warp.thread_rank();
    const PhiloxWords made =
        sign_words(signs, signs.first_index + thread / 2 * kRotationBlock, thread % 2);
    warp.sync();
    store(signs_ + thread, Words128{{made.word[0], made.word[1], made.word[2], made.word[3]}});
    warp.sync();
  }

  /// Of this thread's values in block `block` of the 16, one of its group's.
  TERSOR_DEVICE RotationSigns signs(unsigned block) const {
    RotationSigns signs;
    TERSOR_UNROLL
    for (unsigned half = 0; half < 2; ++half) {
      const Words128 made = load(signs_ + 2 * block + half);
      TERSOR_UNROLL
      for (unsigned i = 0; i < 4; ++i)
        signs.word[4 * half + i] = made.word[i] << (28 - thread_ * kRotationRow);
    }
    return signs;
  }

  /// Calls visit(block, place) for this thread's blocks of the unit, which begins at value `first`
  /// of `count`; what it does is done by the whole warp, also behind the segment's end.
  template <class Visit>
  TERSOR_DEVICE void for_each_block(std::size_t first, std::size_t count,
                                    const Visit& visit) const {
    constexpr unsigned kAtOnce = kRotatedAtOnce * kRotationBlock;
    const unsigned group = warp_.thread_rank() / kRotationThreads;
    _Pragma("unroll 1") for (unsigned round = 0; round < kRotationUnit / kRotatedAtOnce; ++round) {
      const std::size_t at = first + round * kAtOnce;
      if (at >= count) return;  // the whole warp
      visit(round * kRotatedAtOnce + group,
            RotationPlace{at + group * kRotationBlock, count, thread_, count - at >= kAtOnce});
    }
  }

  /// T of values by rows, as other shares of rows.
  template <RowShare kFrom, RowShare kTo>
  TERSOR_DEVICE void rotate(RotatedValues& x) const {
    rows_to_runs<kFrom>(x);
    rotate_runs<kTo>(x);
  }

  /// T of values by runs, as rows.
  template <RowShare kTo>
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

  /// The tree sum of values by rows, in fourths, which every thread of the block gets.
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

  /// The bits of a block's largest magnitude; more than those of the infinity where it has a NaN.
  TERSOR_DEVICE std::uint32_t maximum(const RotatedValues& x) const {
    float most = 0.0f;
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRotationValues; ++i) most = larger_magnitude(most, x[i]);
    TERSOR_UNROLL
    for (unsigned mask = kRotationThreads / 2; mask != 0; mask /= 2)
      most = larger_magnitude(most, float_of(warp_.shuffle_xor(bits_of(most), mask)));
    return bits_of(most);
  }

  /// From four codes of four bits of each row, in fourths, to the words of this thread's row: code
  /// 4 · n + w at bit 4 · n of word w.
  TERSOR_DEVICE Words128 codes_of_row(const std::uint16_t (&share)[kRotationRows]) const {
    warp_.sync();
    TERSOR_UNROLL
    for (unsigned r = 0; r < kRotationRows; ++r)
      store(reinterpret_cast<std::uint16_t*>(block_ + r) + thread_, share[r]);
    warp_.sync();
    return load(block_ + thread_);
  }

 private:
  template <RowShare kShare>
  TERSOR_DEVICE void rows_to_runs(RotatedValues& x) const {
    warp_.sync();
    TERSOR_UNROLL
    for (unsigned r = 0; r < kRotationRows; ++r)
      store(block_ + r * RotationRoom::kRow + thread_,
            Words128{{bits_of(x[4 * r]), bits_of(x[4 * r + 1]), bits_of(x[4 * r + 2]),
                      bits_of(x[4 * r + 3])}});
    warp_.sync();
    TERSOR_UNROLL
    for (unsigned thread = 0; thread < kRotationThreads; ++thread) {
      const Words128 four = load(block_ + thread_ * RotationRoom::kRow + thread);
      TERSOR_UNROLL
      for (unsigned q = 0; q < kRotationRow; ++q)
        x[place_in_row<kShare>(thread, q)] = float_of(four.word[q]);
    }
  }

  template <RowShare kShare>
  TERSOR_DEVICE void runs_to_rows(RotatedValues& x) const {
    warp_.sync();
    TERSOR_UNROLL
    for (unsigned thread = 0; thread < kRotationThreads; ++thread) {
      Words128 four;
      TERSOR_UNROLL
      for (unsigned q = 0; q < kRotationRow; ++q)
        four.word[q] = bits_of(x[place_in_row<kShare>(thread, q)]);
      store(block_ + thread_ * RotationRoom::kRow + thread, four);
    }
    warp_.sync();
    TERSOR_UNROLL
    for (unsigned r = 0; r < kRotationRows; ++r) {
      const Words128 four = load(block_ + r * RotationRoom::kRow + thread_);
      TERSOR_UNROLL
      for (unsigned q = 0; q < kRotationRow; ++q) x[4 * r + q] = float_of(four.word[q]);
    }
  }

  /// Of a thread's own values, down to one row.
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
