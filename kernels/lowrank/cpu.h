// lowrank on the CPU: parts of one segment, on one thread; the numbers stand in
// include/tersor/codecs/lowrank.h. Same bits on every instruction set. Pointers of values need only
// their element's alignment.
#pragma once

#include "kernels/host/arguments.h"
#include "kernels/lowrank/formulas.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// A matrix, row after row, and how many directions it is reduced to.
struct LowrankShape {
  std::size_t rows;
  std::size_t columns;
  std::size_t rank;
};

/// Rows or columns of a matrix.
struct LowrankRange {
  std::size_t first;
  std::size_t count;
};

/// Columns that one task takes in round 1: any multiple of them.
constexpr std::size_t kLowrankStrip = 256;
/// Rows that one task takes elsewhere.
constexpr std::size_t kLowrankRows = 64;

/// Q, with columns lowrank_stride(columns) apart; `memory` may be null.
void lowrank_directions(const float* memory, const LowrankShape& shape, std::uint32_t parameter,
                        float* directions);

/// Rows of P, whose columns lie `rows` apart.
void lowrank_project(const Sent& sent, const LowrankShape& shape, LowrankRange rows,
                     const float* directions, float* projected);

/// Makes P orthonormal: columns lie lowrank_stride(rows) apart.
void lowrank_orthonormalize(const LowrankShape& shape, float* basis);

/// Columns of W, whose columns lie `columns` apart, times `factor`, and the new residual.
struct LowrankCoefficients {
  Sent sent;
  LowrankShape shape;
  const float* basis;
  float factor;
  void* values;
  Dtype dtype;  // of the values: f32 or bf16
};
void lowrank_coefficients(const LowrankCoefficients& arguments, LowrankRange columns);

/// Rows of the result. Columns of W lie lowrank_stride(columns) apart here.
struct LowrankDecode {
  LowrankShape shape;
  const float* basis;
  const float* coefficients;
  Decoded to;
};
void lowrank_decode(const LowrankDecode& arguments, LowrankRange rows);

}  // namespace tersor::kernels
