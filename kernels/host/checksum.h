// The checksum of a frame on the CPU; what it is stands in kernels/scalar/checksum.h.
#pragma once

#include "kernels/scalar/checksum.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

extern const ChecksumNumbers kChecksumNumbers;

/// The part of the checksum that `count` words at `words` (any alignment) give, the first of which
/// is word number `first_word` of the frame: below 2^61 - 1. Add parts by add_checksums().
std::uint64_t checksum(const void* words, std::size_t count, std::uint64_t first_word);

/// Of a row, at any address, and of `count` words that follow it in the frame but lie elsewhere.
std::uint64_t checksum_behind(const void* first_row, const void* words, std::size_t count);

}  // namespace tersor::kernels
