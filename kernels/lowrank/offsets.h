// Offsets of a segment's own values among the values of all segments.
#pragma once

#include "kernels/lowrank/formulas.h"

#include <tersor/codecs/lowrank.h>

#include <cstddef>

namespace tersor::kernels {

/// Numbers of values: of all segments before a segment, or of one segment. The numbers for basis
/// and workspace are multiples of kLowrankChains.
struct LowrankOffset {
  std::size_t left = 0;
  std::size_t right = 0;
  std::size_t basis = 0;
  std::size_t workspace = 0;  // on a device: Q, or W as f32 with its partial sums over 64 rows

  static LowrankOffset of(const LowrankLayout& layout) {
    const std::size_t right = layout.rank() * lowrank_stride(layout.columns);
    return {.left = layout.left(),
            .right = layout.right(),
            .basis = layout.rank() * lowrank_stride(layout.rows),
            .workspace = right * (1 + ceil_div(layout.rows, kLowrankChains))};
  }
  LowrankOffset& operator+=(const LowrankOffset& other) {
    left += other.left;
    right += other.right;
    basis += other.basis;
    workspace += other.workspace;
    return *this;
  }
};

}  // namespace tersor::kernels
