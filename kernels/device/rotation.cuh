// Blocks of 256 values in the registers of eight neighbouring threads: the transform T, the tree
// sum, random signs, and planes of bits. A warp works on four blocks at a time, sixteen of which
// share a round of random numbers. All threads of a warp call everything here together.
#pragma once

#include "kernels/device/row.cuh"
#include "kernels/device/tree.cuh"
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

/// Value 32 · r + 4 · t + q of a block in thread t, as [4 · r + q].
using RotatedValues = float[kRotationValues];

/// Where a thread's rows of a block lie in their segment.
struct RotationPlace {
  std::size_t first;  // of the block
  std::size_t count;  // of the segment
  unsigned thread;    // of the eight

  /// False behind the segment's end.
  TERSOR_DEVICE bool is_there() const { return first < count; }
  TERSOR_DEVICE bool is_whole() const { return first + kRotationBlock <= count; }
  TERSOR_DEVICE RowPlace row(unsigned r, bool aligned) const {
    const std::size_t at = first + r * kRotationThreads * kRotationRow + thread * kRotationRow;
    return {at, at < count ? count - at : 0, aligned};
  }
};

template <Load kLoad, typename T>
TERSOR_DEVICE void load_rotated(const T* values, const RotationPlace& place, RotatedValues& x) {
  const bool aligned = is_aligned_for<T, kRotationRow>(values);
  TERSOR_UNROLL
  for (unsigned r = 0; r < kRotationRows; ++r) {
    float row[kRotationRow];
    load_row<kLoad>(values, place.row(r, aligned), row);
    TERSOR_UNROLL
    for (unsigned q = 0; q < kRotationRow; ++q) x[kRotationRow * r + q] = row[q];
  }
}

template <typename T>
TERSOR_DEVICE void store_rotated(const RotatedValues& x, T* values, const RotationPlace& place) {
  const bool aligned = is_aligned_for<T, kRotationRow>(values);
  TERSOR_UNROLL
  for (unsigned r = 0; r < kRotationRows; ++r) {
    float row[kRotationRow];
    TERSOR_UNROLL
    for (unsigned q = 0; q < kRotationRow; ++q) row[q] = x[kRotationRow * r + q];
    store_row(row, values, place.row(r, aligned));
  }
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

/// The same with thread XOR kMask. Products with 1 and −1 are exact, so fma rounds as the sum does.
template <unsigned kMask, class Warp>
TERSOR_DEVICE void rotate_between(const Warp& warp, RotatedValues& x) {
  const float sign = (warp.thread_rank() & kMask) == 0 ? 1.0f : -1.0f;
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRotationValues; ++i)
    x[i] = fused_multiply_add(x[i], sign, float_of(warp.shuffle_xor(bits_of(x[i]), kMask)));
}

/// T.
template <class Warp>
TERSOR_DEVICE void rotate(const Warp& warp, RotatedValues& x) {
  rotate_within<1>(x);
  rotate_within<2>(x);
  rotate_between<1>(warp, x);
  rotate_between<2>(warp, x);
  rotate_between<4>(warp, x);
  rotate_within<kRotationRow>(x);
  rotate_within<2 * kRotationRow>(x);
  rotate_within<4 * kRotationRow>(x);
}

/// The tree sum of a thread's own values, down to one row.
template <unsigned kHalf>
TERSOR_DEVICE void add_halves(RotatedValues& s) {
  if constexpr (kHalf >= kRotationRow) {
    TERSOR_UNROLL
    for (unsigned i = 0; i < kHalf; ++i) s[i] += s[i + kHalf];
    add_halves<kHalf / 2>(s);
  }
}

/// The tree sum, which every thread of the block gets.
template <class Warp>
TERSOR_DEVICE float tree_sum(const Warp& warp, RotatedValues& s) {
  add_halves<kRotationValues / 2>(s);
  return tree_sum_between<kRotationThreads, kRotationRow>(warp, s);
}

/// The largest magnitude of a block, as bits.
template <class Warp>
TERSOR_DEVICE std::uint32_t rotated_maximum(const Warp& warp, const RotatedValues& x) {
  std::uint32_t most = 0;
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRotationValues; ++i) {
    const std::uint32_t bits = magnitude_bits(x[i]);
    most = bits > most ? bits : most;
  }
  TERSOR_UNROLL
  for (unsigned mask = kRotationThreads / 2; mask != 0; mask /= 2) {
    const std::uint32_t other = warp.shuffle_xor(most, mask);
    most = other > most ? other : most;
  }
  return most;
}

/// The signs of a thread's values.
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

/// The random words of 16 blocks: each thread makes half of one block's.
class UnitSigns {
 public:
  /// `index`: where the first of the blocks begins in its parameter.
  template <class Warp>
  TERSOR_DEVICE UnitSigns(const Warp& warp, std::uint32_t step, std::uint32_t parameter,
                          std::uint64_t index) {
    const unsigned thread = warp.thread_rank();
    mine_ = sign_words({step, parameter, 0}, index + thread / 2 * kRotationBlock, thread % 2);
  }

  /// Those of this thread in block `block` of the 16, one of its group's.
  template <class Warp>
  TERSOR_DEVICE RotationSigns of(const Warp& warp, unsigned block) const {
    RotationSigns signs;
    const unsigned shift = 28 - warp.thread_rank() % kRotationThreads * kRotationRow;
    TERSOR_UNROLL
    for (unsigned r = 0; r < kRotationRows; ++r)
      signs.word[r] = warp.shuffle(mine_.word[r % 4], 2 * block + r / 4) << shift;
    return signs;
  }

 private:
  PhiloxWords mine_;
};

/// From 32 bits of a thread, bit i for its value i, to word t of a plane in thread t, and back:
/// four bits at place r of thread t go to place t of thread r.
template <class Warp>
TERSOR_DEVICE std::uint32_t transposed(const Warp& warp, std::uint32_t bits) {
  TERSOR_UNROLL
  for (unsigned mask = 1; mask < kRotationThreads; mask *= 2) {
    const std::uint32_t low = mask == 1 ? 0x0f0f0f0fu : mask == 2 ? 0x00ff00ffu : 0x0000ffffu;
    const std::uint32_t other = warp.shuffle_xor(bits, mask);
    if ((warp.thread_rank() & mask) == 0)
      bits = (bits & low) | (other & low) << 4 * mask;
    else
      bits = (other >> 4 * mask & low) | (bits & ~low);
  }
  return bits;
}

/// Calls visit(block, place) for the blocks of this thread in a unit; what it does is done by the
/// whole warp, also behind the segment's end.
template <class Warp, class Visit>
TERSOR_DEVICE void for_each_rotated(const Warp& warp, std::size_t first, std::size_t count,
                                    const Visit& visit) {
  _Pragma("unroll 1") for (unsigned round = 0; round < kRotationUnit / kRotatedAtOnce; ++round) {
    if (first + round * kRotatedAtOnce * kRotationBlock >= count) return;  // the whole warp
    const unsigned block = round * kRotatedAtOnce + warp.thread_rank() / kRotationThreads;
    visit(block, RotationPlace{first + block * kRotationBlock, count,
                               warp.thread_rank() % kRotationThreads});
  }
}

}  // namespace tersor::kernels
