// Checksums on a device: the numbers they are made with, sums over pieces of a frame, and sums that
// many threads add to.
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

  /// Adds what this thread has.
  TERSOR_DEVICE void add(std::uint64_t sum) {
    atomic_add(&low, sum & 0xffffffffu);
    atomic_add(&high, sum >> 32);
  }

  /// Once all have added.
  TERSOR_DEVICE std::uint64_t value() const {
    const std::uint64_t upper = checksum_remainder(load_fresh(&high));
    return add_checksums(multiply_checksums(upper, std::uint64_t{1} << 32),
                         checksum_remainder(load_fresh(&low)));
  }
};

/// The part of a word of a group, before it is multiplied with the group's power.
TERSOR_DEVICE std::uint64_t checksum_of_word(std::uint32_t word, unsigned index) {
  const std::int64_t value = static_cast<std::int32_t>(word);
  return checksum_of(fold_checksum(value * kDeviceChecksumNumbers.weight[index]));
}

constexpr std::size_t kGroupBytes = kChecksumGroup * sizeof(std::uint32_t);

/// What this thread of a warp has of bytes [begin, end) of a group, multiples of 16: 16 bytes of
/// every 512. Written by this warp, or by an earlier launch.
TERSOR_DEVICE std::uint64_t sum_group(const std::byte* frame, std::size_t group, unsigned begin,
                                      unsigned end, unsigned thread) {
  const ChecksumNumbers& numbers = kDeviceChecksumNumbers;
  const auto* words = reinterpret_cast<const Words128*>(frame + group * kGroupBytes);
  const auto* weights = reinterpret_cast<const Words128*>(numbers.weight);
  std::uint64_t low = 0;
  std::int64_t high = 0;
  TERSOR_UNROLL_2
  for (unsigned at = begin / sizeof(Words128) + thread; at < end / sizeof(Words128); at += 32) {
    const Words128 four = load(words + at), factors = load(weights + at);
    std::int64_t products = 0;
    TERSOR_UNROLL
    for (unsigned i = 0; i < 4; ++i)
      products += std::int64_t{static_cast<std::int32_t>(four.word[i])} *
                  static_cast<std::int32_t>(factors.word[i]);
    low += static_cast<std::uint32_t>(products);
    high += products >> 32;
  }
  // Of high · 2^32 what lies above bit 61 comes in below: 2^61 leaves 1.
  constexpr unsigned kBelow = kChecksumBits - 32;
  const std::uint64_t middle = static_cast<std::uint64_t>(high) & ((1u << kBelow) - 1);
  const auto sum = static_cast<std::int64_t>(low + (middle << 32)) + (high >> kBelow);
  return multiply_checksums(checksum_of(sum), numbers.power_of(group));
}

/// What this thread of a warp has of a frame's bytes [begin, end), multiples of 16.
TERSOR_DEVICE std::uint64_t sum_bytes(const std::byte* frame, std::size_t begin, std::size_t end,
                                      unsigned thread) {
  std::uint64_t sum = 0;
  while (begin < end) {
    const std::size_t group = begin / kGroupBytes, next = (group + 1) * kGroupBytes;
    const std::size_t to = end < next ? end : next;
    sum = add_checksums(sum,
                        sum_group(frame, group, static_cast<unsigned>(begin - group * kGroupBytes),
                                  static_cast<unsigned>(to - group * kGroupBytes), thread));
    begin = to;
  }
  return sum;
}

/// The same for multiples of 4, word by word.
TERSOR_DEVICE std::uint64_t sum_words(const std::byte* frame, std::size_t begin, std::size_t end,
                                      unsigned thread) {
  constexpr std::size_t kWord = sizeof(std::uint32_t);
  const auto* words = reinterpret_cast<const std::uint32_t*>(frame);
  std::uint64_t sum = 0;
  for (std::size_t at = begin / kWord + thread; at < end / kWord; at += 32) {
    const std::uint64_t part =
        checksum_of_word(load(words + at), static_cast<unsigned>(at % kChecksumGroup));
    sum = add_checksums(
        sum, multiply_checksums(part, kDeviceChecksumNumbers.power_of(at / kChecksumGroup)));
  }
  return sum;
}

/// The sum of what all threads of a warp have.
template <class Warp>
TERSOR_DEVICE std::uint64_t sum_of_warp(const Warp& warp, std::uint64_t sum) {
  constexpr unsigned kBits = 21;  // 32 such numbers fit into a word
  constexpr std::uint64_t kMask = (std::uint64_t{1} << kBits) - 1;
  const std::uint64_t low = warp.add(static_cast<std::uint32_t>(sum & kMask));
  const std::uint64_t middle = warp.add(static_cast<std::uint32_t>(sum >> kBits & kMask));
  const std::uint64_t high = warp.add(static_cast<std::uint32_t>(sum >> 2 * kBits));
  return add_checksums(low + (middle << kBits),
                       multiply_checksums(high, std::uint64_t{1} << 2 * kBits));
}

}  // namespace tersor::kernels
