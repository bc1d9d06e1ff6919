// lowrank on the CPU: processes parts of one segment on one thread. include/tersor/codecs/lowrank.h
// defines the arithmetic. The bits are the same on every instruction set. Value pointers need only
// the alignment of their element type.
#pragma once

#include "kernels/host/arguments.h"
#include "kernels/lowrank/formulas.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// A row-major matrix, and the number of directions to which the matrix is reduced.
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

/// Columns per task in round 1. A task may process any multiple.
constexpr std::size_t kLowrankStrip = 256;
/// Rows per task in all other steps.
constexpr std::size_t kLowrankRows = 64;

/// Computes Q, with columns lowrank_stride(columns) apart. `memory` may be null.
void lowrank_directions(const float* memory, const LowrankShape& shape, std::uint32_t parameter,
                        float* directions);

/// Computes rows of P, with columns `rows` apart.
void lowrank_project(const EncodeInput& sent, const LowrankShape& shape, LowrankRange rows,
                     const float* directions, float* projected);

/// Makes P orthonormal. Columns are lowrank_stride(rows) apart.
void lowrank_orthonormalize(const LowrankShape& shape, float* basis);

/// Computes columns of W times `factor`, with columns `columns` apart, and the new residual.
struct LowrankCoefficients {
  EncodeInput sent;
  LowrankShape shape;
  const float* basis;
  float factor;
  void* values;
  Dtype dtype;  // of the values: f32 or bf16
};
void lowrank_coefficients(const LowrankCoefficients& arguments, LowrankRange columns);

/// Computes rows of the result. Here, columns of W are lowrank_stride(columns) apart.
struct LowrankDecode {
  LowrankShape shape;
  const float* basis;
  const float* coefficients;
  DecodeOutput to;
};
void lowrank_decode(const LowrankDecode& arguments, LowrankRange rows);

}  // namespace tersor::kernels
