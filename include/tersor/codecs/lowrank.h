/// lowrank: a matrix as the product of two narrow ones, P W^T, found by one step of a power
/// iteration from the last step's W (PowerSGD, Vogels, Karimireddy, Jaggi 2019), with every sum
/// made in one order. It sends no frames, only bare values, in two native rounds.
///
/// Segments have rows and columns; r = min(rank, rows, columns). Matrices of r columns (P, Q, W)
/// lie column after column.
///
/// Q        f32[r * columns]: the memory; each column times the power of two that brings its
///          largest magnitude into [1, 2). A column of zeros is drawn instead: as an i32, times
///          2^-31, the first word of Philox4x32-7 of (c * r + j low, high, 0xffffffff, parameter)
///          under the key 0x6c6f7772616e6b21, for column c of the segment and column j of Q
/// Round 0  P  f32[r * rows], native sum: p Q, as 64 chains of fma, chain l over the columns equal
///          to l modulo 64, ascending, from +0, what is missing in the last 64 counting as +0; then
///          s_i + s_(i + h) for h = 32, 16, ..., 1
/// Between  P of all ranks is made orthonormal: modified Gram-Schmidt over its columns, twice; with
///          sums like those above, over rows. Columns are brought into [1, 2) as those of Q are, at
///          first all, then each before its length is taken; one whose length is 0, the second time
///          at most 1/2 of what it was, lies in those before it, but for roundings, and becomes 0
/// Round 1  W  f32 or bf16 [r * columns], native sum: (p^T P) * factor; a chain of fma over 64
///          rows, ascending, from +0; such chains are added in order, from +0
/// Value    fma over j, ascending: P_ij * (sum of W)_cj, the first a product; then * factor
/// Residual p - d, d the value that the own W gives (bf16: what was sent / factor)
/// Memory   the sum of W, f32[r * columns], the same on all ranks; it stays where the sum is 0
/// Error    what p has outside the r directions; nothing where its rank is at most r
/// Where P is not finite all outputs are NaN on all ranks, residual and memory stay.
#pragma once

#include <tersor/align.h>
#include <tersor/dtype.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tersor {

inline constexpr std::uint16_t kLowrankCodecId = 10;

/// Options of the spec: lowrank[:rank=1|2|4|8|16|32 (4),values=f32|bf16].
struct LowrankOptions {
  std::size_t rank = 4;
  Dtype values = Dtype::kF32;  ///< of round 1
};

/// How many bare values one segment takes in each round; those of the next follow at once.
struct LowrankLayout {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t most_rank = 1;  ///< the option

  constexpr std::size_t rank() const { return std::min({most_rank, rows, columns}); }
  constexpr std::size_t left() const { return rank() * rows; }      ///< P
  constexpr std::size_t right() const { return rank() * columns; }  ///< Q, W and memory

  /// A segment is carried where both take at most a quarter of its values.
  constexpr bool pays() const { return rank() != 0 && left() + right() <= rows * columns / 4; }
};
static_assert(LowrankLayout{64, 32, 4}.left() == 256 && LowrankLayout{64, 32, 4}.right() == 128);
static_assert(LowrankLayout{64, 32, 4}.pays() && !LowrankLayout{1, 4096, 4}.pays());

}  // namespace tersor
