// The decode kernel writes the outputs: 4 bytes per f32 value. If values are added to the output,
// the kernel also reads 4 bytes per value.
#pragma once

#include "kernels/lowrank/matrix.cuh"

namespace tersor::kernels {

template <typename T>
struct LowrankDecodeKernel : UnitKernel {
  static constexpr unsigned kResident = 4;

  SegmentTable<LowrankDecodeEntry, kLowrankSegments> table;
  const float* round_state;
  const float* workspace;
  float factor;
  DecodeMode mode;

  static std::size_t units(const LowrankMatrix& matrix) { return LowrankArea::units(matrix); }

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    for_each_part(block, table, [&](const LowrankDecodeEntry& segment, std::size_t unit) {
      const LowrankMatrix& matrix = segment.matrix;
      auto* output = static_cast<T*>(segment.output);
      const bool aligned = matrix.is_aligned<T>(output);
      LowrankArea::of(matrix, unit)
          .for_each_block(block.warp(), matrix, [&](std::size_t row, std::size_t column) {
            LowrankBlock values;
            load_values(matrix, matrix.basis_of(round_state) + row,
                        matrix.workspace_of(workspace) + column, values);
            TERSOR_UNROLL
            for (unsigned i = 0; i < kLowrankBatch; ++i)
              write(values[i], output, matrix.position(row + i, column, aligned));
          });
    });
  }

 private:
  TERSOR_DEVICE void write(float (&values)[kLowrankRow], T* output,
                           const RowPosition& position) const {
    float old[kLowrankRow];
    if (mode == DecodeMode::kAdd) load_row<Load::kAny>(output, position, old);
    TERSOR_UNROLL
    for (unsigned q = 0; q < kLowrankRow; ++q)
      values[q] = mode == DecodeMode::kAdd ? fused_multiply_add(values[q], factor, old[q])
                                           : values[q] * factor;
    store_row(values, output, position);
  }
};

}  // namespace tersor::kernels
