// Where a segment's own values lie among those of all segments.
#pragma once

#include "kernels/lowrank/formulas.h"

#include <tersor/codecs/lowrank.h>

#include <cstddef>

namespace tersor::kernels {

/// Values of all segments before one, or of one segment alone. Those of basis and workspace are
/// multiples of kLowrankChains.
struct LowrankPlace {
  std::size_t left = 0;
  std::size_t right = 0;
  std::size_t basis = 0;
  std::size_t workspace = 0;  // on a device: Q; or W as f32, and before it is summed by 64 rows

  static LowrankPlace of(const LowrankLayout& layout) {
    const std::size_t right = layout.rank() * lowrank_stride(layout.columns);
    return {.left = layout.left(),
            .right = layout.right(),
            .basis = layout.rank() * lowrank_stride(layout.rows),
            .workspace = right * (1 + ceil_div(layout.rows, kLowrankChains))};
  }
  LowrankPlace& operator+=(const LowrankPlace& other) {
    left += other.left;
    right += other.right;
    basis += other.basis;
    workspace += other.workspace;
    return *this;
  }
};

}  // namespace tersor::kernels
