// blocktopk once more, written from docs/wire-format.md alone, by sorting, one value and one bit at
// a time: what the tests hold the kernels against. Nothing here includes kernels.
#pragma once

#include <cstddef>
#include <vector>

namespace tersor::test {

inline constexpr std::size_t kSelectedValues = 4096;  // of a block

struct BlocktopkTask {
  double density;
  unsigned value_bits;  // 1: signs, 4: int4, 16: bf16

  std::size_t kept() const;   ///< k
  unsigned low_bits() const;  ///< l
};

/// What one segment becomes.
struct BlocktopkCoded {
  std::vector<std::byte> payload;
  std::vector<float> decoded;
  std::vector<float> residual;  // of poisoned blocks: the old one
  std::size_t overflows = 0;
};

/// Codes p; `old_residual` may be empty (then no residual of poisoned blocks is known).
BlocktopkCoded blocktopk_coded(const BlocktopkTask& task, const std::vector<float>& p,
                               const std::vector<float>& old_residual);

/// Where the sections begin in the payload of `count` values, in bytes: scales, high, low, values
/// and the end.
std::vector<std::size_t> blocktopk_sections(const BlocktopkTask& task, std::size_t count);

}  // namespace tersor::test
