// The kernels that write P, W and the residual. Each sum is computed by a single warp, in the order
// defined by the format.
//
// Memory traffic in bytes per value, for f32: P reads 4, W reads 4, and the residual reads 8 and
// writes 4. Error feedback adds 4 read to P and to W. Each direction adds 1/16 byte for writing and
// reading the partial sums of W over 64 rows. If the rank exceeds four directions, neighbouring
// warps read the same values.
#pragma once

#include "kernels/lowrank/matrix.cuh"

namespace tersor::kernels {

/// Blocks per multiprocessor: the maximum without register spills.
struct LowrankResident {
  unsigned projected, partial, residual;
};
constexpr LowrankResident kLowrankResident = {.projected = 2, .partial = 3, .residual = 2};

/// P: a warp processes four rows and four directions. Each half-warp sums the 64 chains of two
/// rows.
template <typename G, typename E>
struct LowrankProjectKernel : UnitKernel {
  static constexpr unsigned kResident = kLowrankResident.projected;
  static constexpr unsigned kHalf = kWarpThreads / 2;
  static constexpr unsigned kRows = 2;
  static_assert(kHalf * kLowrankRow == kLowrankChains);

  SegmentTable<LowrankEncodeEntry, kLowrankSegments> table;
  const float* workspace;
  float* projected;
  CallWords words;

  static std::size_t units(const LowrankMatrix& matrix) {
    return ceil_div(matrix.rows, 2 * kRows) * matrix.groups();
  }

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    for_each_part(block, table, [&](const LowrankEncodeEntry& segment, std::size_t unit) {
      project(block.warp(), segment, unit);
    });
  }

 private:
  using Sums = float[kRows][kLowrankBatch][kLowrankRow];

  template <class Warp>
  TERSOR_DEVICE void project(const Warp& warp, const LowrankEncodeEntry& segment,
                             std::size_t unit) const {
    const LowrankMatrix& matrix = segment.matrix;
    const unsigned half = warp.thread_rank() / kHalf, thread = warp.thread_rank() % kHalf;
    const std::size_t row = (unit / matrix.groups() * 2 + half) * kRows;
    const unsigned first = unit % matrix.groups() * kLowrankBatch;
    Sums sums = {};
    if (!is_inactive(segment)) add_products(segment, row, first, thread, sums);
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRows; ++i) {
      TERSOR_UNROLL
      for (unsigned j = 0; j < kLowrankBatch; ++j) {
        const float sum = tree_sum_between<kHalf, kLowrankRow>(warp, sums[i][j]);
        if (thread == 0 && row + i < matrix.rows && first + j < matrix.rank)
          store(projected + segment.offset + (first + j) * matrix.rows + row + i, canonical(sum));
      }
    }
  }

  /// Adds the products with four directions. A missing direction is replaced by the last direction.
  TERSOR_DEVICE void add_products(const LowrankEncodeEntry& segment, std::size_t row,
                                  unsigned first, unsigned thread, Sums& sums) const {
    const LowrankMatrix& matrix = segment.matrix;
    const LowrankSentRows<G, E> sent(segment, words);
    const float* directions = matrix.workspace_of(workspace);
    TERSOR_UNROLL_2
    for (std::size_t column = thread * kLowrankRow; column < matrix.column_stride();
         column += kLowrankChains) {
      float p[kRows][kLowrankRow];
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRows; ++i) sent.load(row + i, column, p[i]);
      TERSOR_UNROLL
      for (unsigned j = 0; j < kLowrankBatch; ++j) {
        const unsigned own = first + j < matrix.rank ? first + j : matrix.rank - 1;
        float direction[kLowrankRow];
        load_four(directions + matrix.right_at(own) + column, direction);
        TERSOR_UNROLL
        for (unsigned i = 0; i < kRows; ++i) {
          TERSOR_UNROLL
          for (unsigned q = 0; q < kLowrankRow; ++q)
            sums[i][j][q] = fused_multiply_add(p[i][q], direction[q], sums[i][j][q]);
        }
      }
    }
  }
};

/// True if a segment sends no coefficients in round 1.
TERSOR_DEVICE bool sends_no_coefficients(const LowrankEncodeEntry& segment,
                                         const float* round_state) {
  return is_inactive(segment) || !is_finite(load_input(segment.matrix.basis_of(round_state)));
}

/// The partial sums of W over 64 rows. A warp processes 128 columns and four directions.
template <typename G, typename E>
struct LowrankPartialKernel : UnitKernel {
  static constexpr unsigned kResident = kLowrankResident.partial;
  static constexpr unsigned kColumns = kWarpThreads * kLowrankRow;

  SegmentTable<LowrankEncodeEntry, kLowrankSegments> table;
  const float* round_state;
  float* workspace;
  CallWords words;

  static std::size_t units(const LowrankMatrix& matrix) {
    return matrix.tiles() * ceil_div(matrix.columns, kColumns) * matrix.groups();
  }

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    for_each_part(block, table, [&](const LowrankEncodeEntry& segment, std::size_t unit) {
      if (!sends_no_coefficients(segment, round_state)) write_unit(block.warp(), segment, unit);
    });
  }

 private:
  template <class Warp>
  TERSOR_DEVICE void write_unit(const Warp& warp, const LowrankEncodeEntry& segment,
                                std::size_t unit) const {
    const LowrankMatrix& matrix = segment.matrix;
    const std::size_t strip = unit / matrix.groups(), strips = ceil_div(matrix.columns, kColumns);
    const unsigned first = unit % matrix.groups() * kLowrankBatch;
    const std::size_t tile = strip / strips;
    const std::size_t column = strip % strips * kColumns + warp.thread_rank() * kLowrankRow;
    if (column >= matrix.column_stride()) return;
    LowrankBlock sums = {};
    add_rows(segment, tile * kLowrankChains, column, first, sums);
    float* partial = matrix.workspace_of(workspace) + matrix.partial_at(tile, first) + column;
    TERSOR_UNROLL
    for (unsigned j = 0; j < kLowrankBatch; ++j)
      if (first + j < matrix.rank) store_four(sums[j], partial + matrix.right_at(j));
  }

  /// Adds up to 64 rows. Missing rows add 0, which changes no bit of a sum that starts at +0.
  TERSOR_DEVICE void add_rows(const LowrankEncodeEntry& segment, std::size_t begin,
                              std::size_t column, unsigned first, LowrankBlock& sums) const {
    const LowrankMatrix& matrix = segment.matrix;
    const LowrankSentRows<G, E> sent(segment, words);
    TERSOR_KEEP_LOOP
    for (std::size_t row = begin; row < begin + kLowrankChains && row < matrix.rows;
         row += kLowrankBatch) {
      LowrankBlock p, basis;
      sent.load_block(row, column, p);
      load_basis(matrix, row, first, basis);
      TERSOR_UNROLL
      for (unsigned i = 0; i < kLowrankBatch; ++i) add_row(p[i], basis, i, sums);
    }
  }

  /// Loads four rows of each direction. A missing direction is replaced by the last direction.
  TERSOR_DEVICE void load_basis(const LowrankMatrix& matrix, std::size_t row, unsigned first,
                                LowrankBlock& basis) const {
    TERSOR_UNROLL
    for (unsigned j = 0; j < kLowrankBatch; ++j) {
      const unsigned own = first + j < matrix.rank ? first + j : matrix.rank - 1;
      load_four(matrix.basis_of(round_state) + own * matrix.row_stride() + row, basis[j]);
    }
  }

  TERSOR_DEVICE static void add_row(const float (&p)[kLowrankRow], const LowrankBlock& basis,
                                    unsigned i, LowrankBlock& sums) {
    TERSOR_UNROLL
    for (unsigned j = 0; j < kLowrankBatch; ++j) {
      TERSOR_UNROLL
      for (unsigned q = 0; q < kLowrankRow; ++q)
        sums[j][q] = fused_multiply_add(p[q], basis[j][i], sums[j][q]);
    }
  }
};

/// W as type T: a warp computes 32 values, each the sum over all rows.
template <typename T>
struct LowrankSendKernel : UnitKernel {
  static constexpr unsigned kResident = 4;

  SegmentTable<LowrankEncodeEntry, kLowrankSegments> table;
  const float* round_state;
  float* workspace;
  T* values;
  NextWords next;
  float factor;

  static std::size_t units(const LowrankMatrix& matrix) {
    return matrix.rank * (matrix.column_stride() / kWarpThreads);
  }

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    for_each_part(block, table, [&](const LowrankEncodeEntry& segment, std::size_t unit) {
      const std::size_t units = segment.matrix.column_stride() / kWarpThreads;
      const std::size_t column = unit % units * kWarpThreads + block.warp().thread_rank();
      send(segment, unit / units, column);
    });
    next.write(block);
  }

 private:
  TERSOR_DEVICE void send(const LowrankEncodeEntry& segment, std::size_t j,
                          std::size_t column) const {
    const LowrankMatrix& matrix = segment.matrix;
    float* own = matrix.workspace_of(workspace) + matrix.right_at(j) + column;
    if (column >= matrix.columns) return store(own, 0.0f);
    T* value = values + segment.offset + j * matrix.columns + column;
    if (sends_no_coefficients(segment, round_state))
      return store(value, from_f32<T>(is_inactive(segment) ? 0.0f : float_of(kNanBits)));
    float sum = 0;
    TERSOR_UNROLL_4
    for (std::size_t tile = 0; tile < matrix.tiles(); ++tile)
      sum = load(own + matrix.partial_at(tile, 0)) + sum;
    const T sent = from_f32<T>(canonical(sum * factor));
    store(value, sent);
    store(own, std::is_same_v<T, Bf16> ? quotient(to_f32(sent), factor) : sum);
  }
};

/// The residual: the remainder of p after subtracting the decoded own W.
template <typename G, typename E>
struct LowrankResidualKernel : UnitKernel {
  static constexpr unsigned kResident = kLowrankResident.residual;

  SegmentTable<LowrankEncodeEntry, kLowrankSegments> table;
  const float* round_state;
  const float* workspace;
  CallWords words;

  static std::size_t units(const LowrankMatrix& matrix) { return LowrankArea::units(matrix); }

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    for_each_part(block, table, [&](const LowrankEncodeEntry& segment, std::size_t unit) {
      const LowrankArea area = LowrankArea::of(segment.matrix, unit);
      if (sends_no_coefficients(segment, round_state) ||
          !is_finite_in(block.warp(), segment.matrix, area.column))
        keep_residual(block.warp(), segment, area);
      else
        store_residual(block.warp(), segment, area);
    });
  }

 private:
  template <class Warp>
  TERSOR_DEVICE bool is_finite_in(const Warp& warp, const LowrankMatrix& matrix,
                                  std::size_t column) const {
    const float* right = matrix.workspace_of(workspace) + column;
    std::uint32_t most = 0;
    for (unsigned j = 0; j < matrix.rank; ++j)
      for (unsigned i = warp.thread_rank();
           i < LowrankArea::kColumns && column + i < matrix.columns; i += kWarpThreads) {
        const std::uint32_t bits = magnitude_bits(load(right + matrix.right_at(j) + i));
        most = bits > most ? bits : most;
      }
    return warp.maximum(most) < kInfinityBits;
  }

  template <class Warp>
  TERSOR_DEVICE void keep_residual(const Warp& warp, const LowrankEncodeEntry& segment,
                                   const LowrankArea& area) const {
    const auto* in = static_cast<const E*>(segment.residual_in);
    auto* out = static_cast<E*>(segment.residual_out);
    if (in == out) return;
    area.for_each_block(warp, segment.matrix, [&](std::size_t row, std::size_t column) {
      for (unsigned i = 0; i < kLowrankBatch; ++i)
        copy_row<E, kLowrankRow>(in, out, segment.matrix.position(row + i, column, false));
    });
  }

  template <class Warp>
  TERSOR_DEVICE void store_residual(const Warp& warp, const LowrankEncodeEntry& segment,
                                    const LowrankArea& area) const {
    const LowrankMatrix& matrix = segment.matrix;
    const LowrankSentRows<G, E> sent(segment, words);
    auto* out = static_cast<E*>(segment.residual_out);
    const bool aligned = matrix.is_aligned<E>(out);
    area.for_each_block(warp, matrix, [&](std::size_t row, std::size_t column) {
      LowrankBlock p, decoded;
      sent.load_block(row, column, p);
      load_values(matrix, matrix.basis_of(round_state) + row,
                  matrix.workspace_of(workspace) + column, decoded);
      TERSOR_UNROLL
      for (unsigned i = 0; i < kLowrankBatch; ++i) {
        TERSOR_UNROLL
        for (unsigned q = 0; q < kLowrankRow; ++q) p[i][q] = p[i][q] - decoded[i][q];
        store_row(p[i], out, matrix.position(row + i, column, aligned));
      }
    });
  }
};

}  // namespace tersor::kernels
