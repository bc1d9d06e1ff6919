// A reference of hadamard for the kernel tests. Written from docs/reference/wire-format.md alone,
// value by value; includes no kernels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tersor::test {

inline constexpr std::size_t kRotatedValues = 256;
using RotatedBlock = std::array<float, kRotatedValues>;

struct HadamardTask {
  unsigned bits;
  std::uint32_t step = 0;
  std::uint32_t parameter = 0;
  std::uint64_t first_index = 0;
};

/// The encoding of one segment.
struct HadamardCoded {
  std::vector<std::uint16_t> scales;
  std::vector<std::array<std::uint8_t, kRotatedValues>> codes;
  std::vector<float> residual;  // poisoned blocks keep the old residual
  std::size_t overflows = 0;
};

/// Bit i is true if value i of the block changes sign.
std::array<bool, kRotatedValues> block_signs(const HadamardTask& task, std::size_t block);

/// Encodes p. If `old_residual` is empty, residuals of poisoned blocks are unknown.
HadamardCoded hadamard_coded(const HadamardTask& task, const std::vector<float>& p,
                             const std::vector<float>& old_residual);

/// The sections of a payload, with padding.
std::vector<std::byte> hadamard_payload(const HadamardTask& task, const HadamardCoded& coded);

/// `factor` times the sum of the payloads, in f32.
std::vector<float> hadamard_sum(const HadamardTask& task, std::span<const HadamardCoded> payloads,
                                std::size_t count, float factor);

}  // namespace tersor::test
