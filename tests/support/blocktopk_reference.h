// A reference of blocktopk for the kernel tests. Written from docs/reference/wire-format.md alone,
// with sorting, value by value and bit by bit; includes no kernels.
#pragma once

#include <cstddef>
#include <vector>

namespace tersor::test {

inline constexpr std::size_t kSelectedValues = 4096;  // of a block

struct BlocktopkTask {
  double density;
  unsigned value_bits;  // 1: signs, 4: int4, 16: bf16

  std::size_t selected() const;  ///< k
  unsigned low_bits() const;     ///< l
};

/// The encoding of one segment.
struct BlocktopkCoded {
  std::vector<std::byte> payload;
  std::vector<float> decoded;
  std::vector<float> residual;  // poisoned blocks keep the old residual
  std::size_t overflows = 0;
};

/// Encodes p. If `old_residual` is empty, residuals of poisoned blocks are unknown.
BlocktopkCoded blocktopk_coded(const BlocktopkTask& task, const std::vector<float>& p,
                               const std::vector<float>& old_residual);

/// Byte offsets of the sections in a payload of `count` values: scales, high, low, values, end.
std::vector<std::size_t> blocktopk_sections(const BlocktopkTask& task, std::size_t count);

}  // namespace tersor::test
