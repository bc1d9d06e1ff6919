// Common parts of lowrank's kernels: the matrix of a segment, rows of p in registers, and values of
// P̂ Wᵀ.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/row.cuh"
#include "kernels/device/units.cuh"
#include "kernels/lowrank/formulas.h"

#include <tersor/align.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

constexpr unsigned kLowrankRow = 4;        // values per thread, neighbours in a row of the matrix
constexpr unsigned kLowrankBatch = 4;      // rows of these, or columns of P and W, in registers
constexpr unsigned kLowrankSegments = 40;  // per launch; the parameters then take < 4,096 bytes

using LowrankBlock = float[kLowrankBatch][kLowrankRow];

/// Returns a tree sum: s_i + s_(i + h) for h = half of all, ..., 2, 1. Value i = kValues · t + q is
/// s[q] in thread t of kThreads threads. Every thread receives the sum. All threads of a warp must
/// call this function together.
template <unsigned kThreads, unsigned kValues, class Warp>
TERSOR_DEVICE float tree_sum_between(const Warp& warp, float* s) {
  TERSOR_UNROLL
  for (unsigned mask = kThreads / 2; mask != 0; mask /= 2) {
    TERSOR_UNROLL
    for (unsigned q = 0; q < kValues; ++q) s[q] += float_of(warp.shuffle_xor(bits_of(s[q]), mask));
  }
  TERSOR_UNROLL
  for (unsigned half = kValues / 2; half != 0; half /= 2) {
    TERSOR_UNROLL
    for (unsigned q = 0; q < half; ++q) s[q] += s[q + half];
  }
  return s[0];
}

/// A segment. `basis` and `workspace` are offsets from the start of the call's buffers, in units of
/// kLowrankChains values.
struct LowrankMatrix {
  std::uint64_t rows;
  std::uint64_t columns;
  std::uint32_t rank;
  std::uint32_t basis;
  std::uint32_t workspace;

  TERSOR_BODY std::size_t row_stride() const { return lowrank_stride(rows); }
  TERSOR_BODY std::size_t column_stride() const { return lowrank_stride(columns); }
  /// Numbers of groups of kLowrankBatch directions, and of tiles of kLowrankChains rows.
  TERSOR_BODY std::size_t groups() const { return ceil_div(rank, kLowrankBatch); }
  TERSOR_BODY std::size_t tiles() const { return ceil_div(rows, kLowrankChains); }

  template <typename T>
  TERSOR_DEVICE T* basis_of(T* round_state) const {
    return round_state + std::size_t{basis} * kLowrankChains;
  }
  template <typename T>
  TERSOR_DEVICE T* workspace_of(T* values) const {
    return values + std::size_t{workspace} * kLowrankChains;
  }
  /// Offset of column `j` of W (right_at), and of the column's partial sum over tile `tile`
  /// (partial_at). The partial sums follow all columns of W.
  TERSOR_DEVICE std::size_t right_at(std::size_t j) const { return j * column_stride(); }
  TERSOR_DEVICE std::size_t partial_at(std::size_t tile, std::size_t j) const {
    return ((tile + 1) * rank + j) * column_stride();
  }

  /// Returns the position of one thread's values in a row. Values outside the matrix count as 0.
  TERSOR_DEVICE RowPosition position(std::size_t row, std::size_t column, bool aligned) const {
    const bool exists = row < rows && column < columns;
    return {row * columns + column, exists ? columns - column : 0, aligned};
  }
  template <typename T>
  TERSOR_DEVICE bool is_aligned(const void* values) const {
    return columns % kLowrankRow == 0 && is_aligned_for<T, kLowrankRow>(values);
  }
};

struct LowrankEncodeEntry : EncodeEntry {  // `offset` counts raw values
  LowrankMatrix matrix;
};
struct LowrankDecodeEntry : DecodeEntry {
  LowrankMatrix matrix;
};

/// Load and store four values of the padded workspace or basis.
TERSOR_DEVICE void load_four(const float* values, float (&four)[kLowrankRow]) {
  unpack_row<float>(RowBytes<16>::load_from<Load::kAny>(values), four);
}
TERSOR_DEVICE void store_four(const float (&four)[kLowrankRow], float* values) {
  pack_row<float>(four).store_to(values);
}

/// Loads p of one segment.
template <typename G, typename E>
class LowrankSentRows {
 public:
  static constexpr bool kFeedback = !std::is_same_v<E, NoResidual>;

  TERSOR_DEVICE LowrankSentRows(const LowrankEncodeEntry& segment, const CallWords& words)
      : segment_(segment), a_(words.gradient_factor()), b_(words.residual_factor()) {
    aligned_ = segment.matrix.is_aligned<G>(segment.gradient);
    if constexpr (kFeedback) residual_aligned_ = segment.matrix.is_aligned<E>(segment.residual_in);
  }

  /// Loads four values of row `row`. Values outside the matrix are computed from zeros.
  TERSOR_DEVICE void load(std::size_t row, std::size_t column, float (&p)[kLowrankRow]) const {
    load_row<Load::kAny>(static_cast<const G*>(segment_.gradient),
                         segment_.matrix.position(row, column, aligned_), p);
    if constexpr (kFeedback) {
      float residual[kLowrankRow];
      load_row<Load::kAny>(static_cast<const E*>(segment_.residual_in),
                           segment_.matrix.position(row, column, residual_aligned_), residual);
      TERSOR_UNROLL
      for (unsigned q = 0; q < kLowrankRow; ++q) p[q] = a_ * p[q] + b_ * residual[q];
    }
  }

  /// Loads four values of each of four rows.
  TERSOR_DEVICE void load_block(std::size_t row, std::size_t column, LowrankBlock& p) const {
    TERSOR_UNROLL
    for (unsigned i = 0; i < kLowrankBatch; ++i) load(row + i, column, p[i]);
  }

 private:
  const LowrankEncodeEntry& segment_;
  float a_, b_;
  bool aligned_ = false, residual_aligned_ = false;
};

/// Computes four rows of P̂ Wᵀ in four columns. `basis` and `right` point to the first row and
/// column.
TERSOR_DEVICE void load_values(const LowrankMatrix& matrix, const float* basis, const float* right,
                               LowrankBlock& values) {
  TERSOR_UNROLL_2
  for (unsigned j = 0; j < matrix.rank; ++j) {
    float left[kLowrankBatch], coefficients[kLowrankRow];
    load_four(basis + j * matrix.row_stride(), left);
    load_four(right + j * matrix.column_stride(), coefficients);
    TERSOR_UNROLL
    for (unsigned i = 0; i < kLowrankBatch; ++i) {
      TERSOR_UNROLL
      for (unsigned q = 0; q < kLowrankRow; ++q)
        values[i][q] = j == 0 ? coefficients[q] * left[i]
                              : fused_multiply_add(coefficients[q], left[i], values[i][q]);
    }
  }
}

/// An area of 32 rows and 256 columns, processed by a warp at a time for values of P̂ Wᵀ.
struct LowrankArea {
  static constexpr unsigned kRows = 32;
  static constexpr unsigned kColumns = 256;  // if W is not finite here, the residual is kept
  static constexpr unsigned kStep = kWarpThreads * kLowrankRow;

  std::size_t row, column;

  TERSOR_BODY static std::size_t strips(const LowrankMatrix& matrix) {
    return ceil_div(matrix.columns, kColumns);
  }
  static std::size_t units(const LowrankMatrix& matrix) {
    return ceil_div(matrix.rows, kRows) * strips(matrix);
  }
  TERSOR_DEVICE static LowrankArea of(const LowrankMatrix& matrix, std::size_t unit) {
    return {unit / strips(matrix) * kRows, unit % strips(matrix) * kColumns};
  }

  /// Calls visit(row, column) for each block of four rows of this thread that starts inside the
  /// matrix.
  template <class Warp, class Visit>
  TERSOR_DEVICE void for_each_block(const Warp& warp, const LowrankMatrix& matrix,
                                    const Visit& visit) const {
    TERSOR_KEEP_LOOP
    for (unsigned part = 0; part < kColumns; part += kStep) {
      const std::size_t own = column + part + warp.thread_rank() * kLowrankRow;
      if (own >= matrix.columns) return;
      TERSOR_KEEP_LOOP
      for (unsigned i = 0; i < kRows && row + i < matrix.rows; i += kLowrankBatch)
        visit(row + i, own);
    }
  }
};

/// Calls visit(segment, unit) for each unit of this warp, numbered within its segment.
template <class Block, class Table, class Visit>
TERSOR_DEVICE void for_each_part(const Block& block, const Table& table, const Visit& visit) {
  for_each_run<1>(block, table, DoNothing{}, visit, DoNothing{});
}

}  // namespace tersor::kernels
