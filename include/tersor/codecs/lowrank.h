/// lowrank: a matrix as the product of two narrow matrices, P W^T. One step of a power iteration
/// starts from the last step's W (PowerSGD, Vogels, Karimireddy, Jaggi 2019). Every sum has a fixed
/// order. The codec sends no frames, only raw values in two native rounds.
///
/// Segments have rows and columns; r = min(rank, rows, columns). Matrices of r columns (P, Q, W)
/// are stored column by column.
///
/// Q        f32[r * columns]: the memory. Each column is scaled by a power of two so that its
///          largest magnitude is in [1, 2). Random numbers replace a column of zeros. For column c
///          of the segment and column j of Q: the first word, as an i32, times 2^-31, of
///          Philox4x32-7 of (c * r + j low, high, 0xffffffff, parameter) under the key
///          0x6c6f7772616e6b21.
/// Round 0  P  f32[r * rows], native sum: p Q. Chain l of 64 fma chains covers the columns equal to
///          l modulo 64, ascending, from +0. Missing columns of the last 64 count as +0. Then
///          s_i + s_(i + h) for h = 32, 16, ..., 1.
/// Between  P of all ranks is made orthonormal: modified Gram-Schmidt over its columns, twice. Sums
///          over rows have the order above. Columns are scaled into [1, 2) like the columns of Q:
///          first all columns, then each before its length is computed. A column becomes 0 if its
///          length is 0, or if the second pass shortens the column to 1/2 or less. The column is
///          then linearly dependent on the columns before, except for rounding.
/// Round 1  W  f32 or bf16 [r * columns], native sum: (p^T P) * factor. Each fma chain covers 64
///          rows, ascending, from +0. Chains are added in order, from +0.
/// Value    fma over j, ascending: P_ij * (sum of W)_cj, the first a product; then * factor.
/// Residual p - d, with d the value of the rank's own W (bf16: the sent value / factor).
/// Memory   the sum of W, f32[r * columns], equal on all ranks; unchanged if the sum is 0.
/// Error    the part of p outside the r directions; none if the rank of p is at most r.
///
/// If P is not finite, all outputs are NaN on all ranks, and residual and memory stay unchanged.
#pragma once

#include <tersor/align.h>
#include <tersor/dtype.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tersor {

/// The codec's number in the wire format.
inline constexpr std::uint16_t kLowrankCodecId = 10;

/// Options of the spec lowrank[:rank=1|2|4|8|16|32 (4),values=f32|bf16].
struct LowrankOptions {
  std::size_t rank = 4;        ///< columns of each factor
  Dtype values = Dtype::kF32;  ///< type of the values in round 1
};

/// The number of raw values of one segment in each round. Segments follow each other without gaps.
struct LowrankLayout {
  std::size_t rows = 0;       ///< rows of the matrix
  std::size_t columns = 0;    ///< columns of the matrix
  std::size_t most_rank = 1;  ///< the option `rank`

  /// Returns r, the columns of each factor.
  constexpr std::size_t rank() const { return std::min({most_rank, rows, columns}); }
  constexpr std::size_t left() const { return rank() * rows; }      ///< values of P
  constexpr std::size_t right() const { return rank() * columns; }  ///< values of Q, W and memory

  /// True if both rounds together send at most a quarter of the segment's values. The codec accepts
  /// only such segments.
  constexpr bool pays() const { return rank() != 0 && left() + right() <= rows * columns / 4; }
};
static_assert(LowrankLayout{64, 32, 4}.left() == 256 && LowrankLayout{64, 32, 4}.right() == 128);
static_assert(LowrankLayout{64, 32, 4}.pays() && !LowrankLayout{1, 4096, 4}.pays());

}  // namespace tersor
