// The checksum of a frame on the CPU; what it is stands in kernels/scalar/checksum.h.
#pragma once

#include "kernels/scalar/checksum.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

extern const ChecksumNumbers kChecksumNumbers;

/// The weight of the word behind each, where vectors can load it.
struct NextWeights {
  alignas(64) std::int32_t weight[kChecksumGroup] = {};
};
extern const NextWeights kNextWeights;

/// The part of the checksum that `count` words at `words` (any alignment) give, the first of which
/// is word number `first_word` of the frame: below 2^61 - 1. Add parts by add_checksums().
std::uint64_t checksum(const void* words, std::size_t count, std::uint64_t first_word);

}  // namespace tersor::kernels
