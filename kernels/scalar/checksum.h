// The arithmetic of a frame's checksum, for g++ and for nvcc:
//
//   Σ word_i · weight(i mod 1024) · base^(i / 1024)   modulo the prime 2^61 - 1,
//
// over the frame's little-endian i32 words. Weights and base are random numbers of 31 and 61 bits
// that every reader makes from one seed (splitmix64). Addition has no order, so pieces of a frame
// may be summed apart. In a field no bit of a product is cut off: a change of any one pattern stays
// hidden for at most one in 2^31 choices of the weights (a pattern within one group of 1,024 words)
// or 2^21 in 2^61 choices of the base (one over several groups: a polynomial has no more roots). Of
// the weights and the base that were chosen, tests/kernels/checksum_test.cc shows more: no two
// flipped bits cancel in a frame of up to 8 GiB, no three within 64 words.
#pragma once

#include "kernels/scalar/bits.h"
#include "kernels/scalar/philox.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tersor::kernels {

constexpr unsigned kChecksumBits = 61;
constexpr std::uint64_t kChecksumPrime = (std::uint64_t{1} << kChecksumBits) - 1;
constexpr std::size_t kChecksumGroup = 1024;  // words with weights of their own
/// Products of a word and a weight that an i64 holds beside what fold_checksum() returned.
constexpr std::size_t kChecksumProducts = 3;

/// A smaller number with the same remainder, in [-4, 2^61 + 2].
TERSOR_BODY std::int64_t fold_checksum(std::int64_t sum) {
  return (sum & static_cast<std::int64_t>(kChecksumPrime)) + (sum >> kChecksumBits);
}

/// The remainder of a number in (-2^61, 2^62).
TERSOR_BODY constexpr std::uint64_t checksum_of(std::int64_t sum) {
  constexpr auto kPrime = static_cast<std::int64_t>(kChecksumPrime);
  if (sum < 0) sum += kPrime;
  return static_cast<std::uint64_t>(sum >= kPrime ? sum - kPrime : sum);
}

/// The checksum of two pieces.
TERSOR_BODY constexpr std::uint64_t add_checksums(std::uint64_t a, std::uint64_t b) {
  return checksum_of(static_cast<std::int64_t>(a + b));
}

/// The remainder of a · b.
TERSOR_BODY constexpr std::uint64_t multiply_checksums(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return add_checksums(static_cast<std::uint64_t>(product) & kChecksumPrime,
                       static_cast<std::uint64_t>(product >> kChecksumBits));
}

/// The remainder of any number.
TERSOR_BODY constexpr std::uint64_t checksum_remainder(std::uint64_t number) {
  return add_checksums(number & kChecksumPrime, number >> kChecksumBits);
}

/// The remainder of low + 2^32 · high, both in (-2^62, 2^62).
TERSOR_BODY constexpr std::uint64_t checksum_of_parts(std::int64_t low, std::int64_t high) {
  constexpr auto kPrime = static_cast<std::int64_t>(kChecksumPrime);
  const auto sum = low + static_cast<__int128>(high) * (std::int64_t{1} << 32);
  return checksum_of((static_cast<std::int64_t>(sum) & kPrime) +
                     static_cast<std::int64_t>(sum >> kChecksumBits));
}

/// The weights of a group's words, and what the groups are multiplied with.
struct ChecksumNumbers {
  static constexpr std::size_t kPowers = 128;  // of each step
  static constexpr std::size_t kSteps = 5;     // base^(i · 128^step): for frames of up to 128 TiB

  alignas(64) std::int32_t weight[kChecksumGroup] = {};
  std::uint64_t power[kSteps][kPowers] = {};

  /// base^group
  TERSOR_BODY constexpr std::uint64_t power_of(std::uint64_t group) const {
    std::uint64_t product = power[0][group % kPowers];
    TERSOR_KEEP_LOOP
    for (std::size_t step = 1; (group /= kPowers) != 0; ++step)
      product = multiply_checksums(product, power[step][group % kPowers]);
    return product;
  }
};

/// Numbers 1 to 1025 of splitmix64 (Steele, Lea, Flood 2014), seed 1: the weights are their upper
/// 31 bits less 2^30, the base is the upper 61 of the last.
constexpr ChecksumNumbers make_checksum_numbers() {
  ChecksumNumbers numbers;
  std::uint64_t state = 1;
  const auto next = [&state] { return splitmix64(std::exchange(state, state + kSplitmixStep)); };
  for (std::size_t i = 0; i < kChecksumGroup; ++i)
    numbers.weight[i] =
        static_cast<std::int32_t>(static_cast<std::int64_t>(next() >> 33) - (1 << 30));
  std::uint64_t base = next() >> 3;
  for (auto& powers : numbers.power) {
    powers[0] = 1;
    for (std::size_t i = 1; i < ChecksumNumbers::kPowers; ++i)
      powers[i] = multiply_checksums(powers[i - 1], base);
    base = multiply_checksums(powers[ChecksumNumbers::kPowers - 1], base);
  }
  return numbers;
}

}  // namespace tersor::kernels
