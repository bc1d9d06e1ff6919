// The kernels whose blocks each need a whole column, or a whole matrix of few columns: Q from the
// memory, the orthonormal basis, and the memory from the sum of W.
#pragma once

#include "kernels/device/queue.cuh"
#include "kernels/lowrank/matrix.cuh"
#include "kernels/scalar/square_root.h"

namespace tersor::kernels {

/// The column or segment processed by a block.
struct LowrankColumnEntry {
  const float* memory_in;  // null: no memory
  float* memory_out;
  LowrankMatrix matrix;
  std::uint64_t offset;  // in raw values
  std::uint32_t parameter;
  std::uint32_t first_unit;
};

struct LowrankColumnKernel : LaunchBounds<1024, 1> {
  static constexpr unsigned kTasks = 1;  // units per block at a time
  struct Shared {
    SharedArray<std::uint32_t, kThreads / kWarpThreads> maxima;
    SharedArray<float, 1> product;
  };

  SegmentTable<LowrankColumnEntry, kLowrankSegments> table;

 protected:
  /// Calls visit(segment, unit) for each unit of this block.
  template <class Block, class Visit>
  TERSOR_DEVICE void for_each(const Block& block, const Visit& visit) const {
    for (std::uint32_t unit = block.rank(); unit < table.units; unit += block.blocks()) {
      const LowrankColumnEntry& segment = table.find(unit);
      visit(segment, unit - segment.first_unit);
    }
  }

  /// Calls visit(i) for this thread's part of `count` values.
  template <class Block, class Visit>
  TERSOR_DEVICE static void for_each_value(const Block& block, std::size_t count,
                                           const Visit& visit) {
    for (std::size_t i = block.thread_rank(); i < count; i += kThreads) visit(i);
  }

  /// Returns the maximum over all threads. Contains barriers.
  template <class Block>
  TERSOR_DEVICE static std::uint32_t maximum(const Block& block, Shared& shared,
                                             std::uint32_t value) {
    const unsigned thread = block.warp().thread_rank();
    const std::uint32_t most = block.warp().maximum(value);
    if (thread == 0) shared.maxima.set(block.warp_rank(), most);
    block.sync();
    const std::uint32_t all = block.warp().maximum(shared.maxima.get(thread));
    block.sync();
    return all;
  }
  static_assert(kThreads / kWarpThreads == kWarpThreads);

  /// Returns the largest magnitude, as bits. NaNs are the largest. Contains barriers.
  template <class Block>
  TERSOR_DEVICE static std::uint32_t largest(const Block& block, Shared& shared,
                                             const float* values, std::size_t count) {
    std::uint32_t most = 0;
    for_each_value(block, count, [&](std::size_t i) {
      const std::uint32_t bits = magnitude_bits(load(values + i));
      most = bits > most ? bits : most;
    });
    return maximum(block, shared, most);
  }
};

/// Q: each block computes one column.
struct LowrankDirectionsKernel : LowrankColumnKernel {
  float* workspace;

  static std::size_t units(const LowrankMatrix& matrix) { return matrix.rank; }

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    for_each(block, [&](const LowrankColumnEntry& segment, unsigned j) {
      const LowrankMatrix& matrix = segment.matrix;
      const float* memory =
          segment.memory_in == nullptr ? nullptr : segment.memory_in + j * matrix.columns;
      const float most = memory == nullptr ? 0 : largest_magnitude(block, shared, memory, matrix);
      const PowerOfTwo power = to_unit(most);
      float* column = matrix.workspace_of(workspace) + matrix.right_at(j);
      for_each_value(block, matrix.column_stride(), [&](std::size_t c) {
        float value = 0;
        if (c < matrix.columns)
          value = most != 0 ? power(load_input(memory + c))
                            : lowrank_random(std::uint64_t{c} * matrix.rank + j, segment.parameter);
        store(column + c, value);
      });
    });
  }

 private:
  /// Returns the largest magnitude of a column, ignoring NaNs. Contains barriers.
  template <class Block>
  TERSOR_DEVICE static float largest_magnitude(const Block& block, Shared& shared,
                                               const float* column, const LowrankMatrix& matrix) {
    float most = 0;
    for_each_value(block, matrix.columns, [&](std::size_t c) {
      const float magnitude = fabsf(load_input(column + c));
      most = most < magnitude ? magnitude : most;
    });
    return float_of(maximum(block, shared, bits_of(most)));
  }
};

/// P̂: each block processes a segment. Each later column is updated by a single warp.
struct LowrankBasisKernel : LowrankColumnKernel {
  const float* projected;
  float* round_state;

  static std::size_t units(const LowrankMatrix&) { return 1; }

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    for_each(block, [&](const LowrankColumnEntry& segment, unsigned) {
      const LowrankMatrix& matrix = segment.matrix;
      float* basis = matrix.basis_of(round_state);
      copy_padded(block, matrix, projected + segment.offset, basis);
      if (keep_finite(block, shared, matrix, basis)) orthonormalize(block, shared, matrix, basis);
    });
  }

 private:
  /// Copies P with padded columns. Ends with a barrier.
  template <class Block>
  TERSOR_DEVICE static void copy_padded(const Block& block, const LowrankMatrix& matrix,
                                        const float* from, float* basis) {
    const std::size_t stride = matrix.row_stride();
    for (unsigned j = 0; j < matrix.rank; ++j)
      for_each_value(block, stride, [&](std::size_t i) {
        store(basis + j * stride + i,
              i < matrix.rows ? load_input(from + j * matrix.rows + i) : 0.0f);
      });
    block.sync();
  }

  /// If any value is not finite, sets all values to NaN and returns false.
  template <class Block>
  TERSOR_DEVICE static bool keep_finite(const Block& block, Shared& shared,
                                        const LowrankMatrix& matrix, float* basis) {
    const std::size_t count = matrix.rank * matrix.row_stride();
    if (largest(block, shared, basis, count) < kInfinityBits) return true;
    for_each_value(block, count, [&](std::size_t i) { store(basis + i, float_of(kNanBits)); });
    return false;
  }

  template <class Block>
  TERSOR_DEVICE static void orthonormalize(const Block& block, Shared& shared,
                                           const LowrankMatrix& matrix, float* basis) {
    const std::size_t count = matrix.row_stride();
    for (unsigned j = 0; j < matrix.rank; ++j)
      scale_to_unit_magnitude(block, shared, basis + j * count, count);
    for (unsigned step = 0; step < 2 * matrix.rank; ++step) {
      const unsigned j = step % matrix.rank;
      const float* column = basis + j * count;
      normalize(block, shared, basis + j * count, count,
                step < matrix.rank ? 0.0f : kLowrankMinLength);
      for (unsigned k = j + 1 + block.warp_rank(); k < matrix.rank; k += block.warps()) {
        float* later = basis + k * count;
        add(block.warp(), -product(block.warp(), column, later, count), column, later, count);
      }
      block.sync();
    }
  }

  /// Scales a column to bring the largest magnitude into [1, 2), and returns the old magnitude as
  /// bits. Ends with a barrier.
  template <class Block>
  TERSOR_DEVICE static std::uint32_t scale_to_unit_magnitude(const Block& block, Shared& shared,
                                                             float* column, std::size_t count) {
    const std::uint32_t most = largest(block, shared, column, count);
    scale(block, to_unit(float_of(most)), column, count);
    return most;
  }

  /// Scales a column to length 1, or to zeros if its length is at most `min_length`. Ends with a
  /// barrier.
  template <class Block>
  TERSOR_DEVICE static void normalize(const Block& block, Shared& shared, float* column,
                                      std::size_t count, float min_length) {
    const std::uint32_t most = scale_to_unit_magnitude(block, shared, column, count);
    if (block.warp_rank() == 0) {
      const float squares = product(block.warp(), column, column, count);
      if (block.thread_rank() == 0) shared.product.set(0, squares);
    }
    block.sync();
    const float length = square_root(shared.product.get(0));
    const bool is_significant = length * power_below(most) > min_length;
    scale(block, {is_significant ? reciprocal(length) : 0.0f, 1.0f}, column, count);
  }

  /// Multiplies a column by `factor`. Ends with a barrier.
  template <class Block>
  TERSOR_DEVICE static void scale(const Block& block, PowerOfTwo factor, float* column,
                                  std::size_t count) {
    for_each_value(block, count,
                   [&](std::size_t i) { store(column + i, factor(load(column + i))); });
    block.sync();
  }

  /// Returns the dot product, with two chains per thread.
  template <class Warp>
  TERSOR_DEVICE static float product(const Warp& warp, const float* a, const float* b,
                                     std::size_t count) {
    float sums[2] = {0.0f, 0.0f};
    TERSOR_UNROLL_4
    for (std::size_t i = 2 * warp.thread_rank(); i < count; i += kLowrankChains) {
      const Words64 x = load(reinterpret_cast<const Words64*>(a + i));
      const Words64 y = load(reinterpret_cast<const Words64*>(b + i));
      TERSOR_UNROLL
      for (unsigned q = 0; q < 2; ++q)
        sums[q] = fused_multiply_add(float_of(x.word[q]), float_of(y.word[q]), sums[q]);
    }
    return tree_sum_between<kWarpThreads, 2>(warp, sums);
  }

  /// later ← later + factor · column
  template <class Warp>
  TERSOR_DEVICE static void add(const Warp& warp, float factor, const float* column, float* later,
                                std::size_t count) {
    TERSOR_UNROLL_4
    for (std::size_t i = warp.thread_rank(); i < count; i += kWarpThreads)
      store(later + i, fused_multiply_add(load(column + i), factor, load(later + i)));
  }
};

/// Converts the sum of W from type T to f32 with padded columns, and writes the memory. Each block
/// processes one segment.
template <typename T>
struct LowrankRememberKernel : LowrankColumnKernel {
  const T* values;
  float* workspace;

  static std::size_t units(const LowrankMatrix&) { return 1; }

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    for_each(block, [&](const LowrankColumnEntry& segment, unsigned) {
      const bool is_finite_nonzero = pad_columns(block, segment);
      const LowrankMatrix& matrix = segment.matrix;
      if (segment.memory_out == nullptr) return;
      if (!is_finite_nonzero && segment.memory_in == segment.memory_out) return;
      for_each_value(block, matrix.rank * matrix.columns, [&](std::size_t i) {
        store(segment.memory_out + i, is_finite_nonzero ? to_f32(load(values + segment.offset + i))
                                                        : load(segment.memory_in + i));
      });
    });
  }

 private:
  /// Copies W with padded columns. True if all values are finite and not all are zero. Contains
  /// barriers.
  template <class Block>
  TERSOR_DEVICE bool pad_columns(const Block& block, const LowrankColumnEntry& segment) const {
    const LowrankMatrix& matrix = segment.matrix;
    const T* from = values + segment.offset;
    float* right = matrix.workspace_of(workspace);
    bool any = false, finite = true;
    for (unsigned j = 0; j < matrix.rank; ++j)
      for_each_value(block, matrix.column_stride(), [&](std::size_t c) {
        const float value = c < matrix.columns ? to_f32(load(from + j * matrix.columns + c)) : 0.0f;
        any |= value != 0;
        finite &= is_finite(value);
        store(right + matrix.right_at(j) + c, value);
      });
    any = block.any(any);
    return !block.any(!finite) && any;
  }
};

}  // namespace tersor::kernels
