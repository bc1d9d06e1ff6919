// The checksum of a frame: Σ word_i · (2i + 1) mod 2^64 over its little-endian u32 words. It is
// free of order, so pieces may be summed apart; every single flipped bit changes it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// The part of the sum that `count` words at `words` (any alignment) give, the first of which is
/// word number `first_word` of the frame.
std::uint64_t checksum(const void* words, std::size_t count, std::uint64_t first_word);

}  // namespace tersor::kernels
