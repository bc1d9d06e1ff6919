// Checksums on a device: the numbers they are made with, and sums that many threads add to.
#pragma once

#include "kernels/device/memory.cuh"
#include "kernels/scalar/checksum.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

static __device__ const ChecksumNumbers kDeviceChecksumNumbers = make_checksum_numbers();

/// A checksum as atomics can add it up: halves of 32 bits, in sums of 64. Zeros at first.
struct ChecksumParts {
  std::uint64_t low;
  std::uint64_t high;

  /// Adds what the threads of a warp have.
  template <class Warp>
  TERSOR_DEVICE void add(const Warp& warp, std::uint64_t sum) {
    const std::uint64_t low_sum = warp.sum(sum & 0xffffffffu), high_sum = warp.sum(sum >> 32);
    if (warp.thread_rank() != 0) return;
    if (low_sum != 0) atomic_add(&low, low_sum);
    if (high_sum != 0) atomic_add(&high, high_sum);
  }

  /// Once all have added.
  TERSOR_DEVICE std::uint64_t value() const {
    const std::uint64_t upper = checksum_remainder(load_fresh(&high));
    return add_checksums(multiply_checksums(upper, std::uint64_t{1} << 32),
                         checksum_remainder(load_fresh(&low)));
  }
};

/// The part of a word of a frame's first group.
TERSOR_DEVICE std::uint64_t checksum_of_word(std::uint32_t word, unsigned index) {
  const std::int64_t value = static_cast<std::int32_t>(word);
  return checksum_of(fold_checksum(value * kDeviceChecksumNumbers.weight[index]));
}

}  // namespace tersor::kernels
