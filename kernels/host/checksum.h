// The checksum of a frame on the CPU. kernels/scalar/checksum.h defines the checksum.
#pragma once

#include "kernels/scalar/checksum.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

extern const ChecksumNumbers kChecksumNumbers;

/// Returns the checksum part of `count` words at `words` (any alignment), below 2^61 - 1. The first
/// word is word number `first_word` of the frame. Add parts with add_checksums().
std::uint64_t checksum(const void* words, std::size_t count, std::uint64_t first_word);

/// Returns the checksum part of a frame's first row and of the next `count` words of the frame,
/// stored at another address.
std::uint64_t checksum_with_first_row(const void* first_row, const void* words, std::size_t count);

}  // namespace tersor::kernels
