// The arithmetic of a frame's checksum, for g++ and for nvcc:
//
//   Σ word_i · weight(row(i)) · base^column(i)   modulo the prime 2^61 - 1,
//   row(i) = ⌊i / 16⌋ mod 1024,   column(i) = i mod 16 + 16 · ⌊i / 16384⌋,
//
// over the frame's little-endian i32 words. A row is 64 bytes and has one weight, which vectors
// broadcast; its words differ by their columns, whose powers are multiplied once for a group of
// 1024 rows. Weights and base are random numbers of 31 and 61 bits that every reader makes from one
// seed (splitmix64). Addition has no order, so pieces of a frame may be summed apart. In a field no
// bit of a product is cut off: a change of any one pattern stays hidden for at most one in 2^31
// choices of the weights (the last one of a column is settled by the others) or 2^21 in 2^61
// choices of the base (a polynomial has no more roots). Of the weights and the base that were
// chosen, tests/kernels/checksum_test.cc shows more: no two flipped bits cancel in a frame of up to
// 8 GiB, no three within 64 words.
#pragma once

#include "kernels/scalar/bits.h"
#include "kernels/scalar/philox.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tersor::kernels {

constexpr unsigned kChecksumBits = 61;
constexpr std::uint64_t kChecksumPrime = (std::uint64_t{1} << kChecksumBits) - 1;
constexpr std::size_t kChecksumColumns = 16;  // words of a row, which have one weight
constexpr std::size_t kChecksumRows = 1024;   // of a group
constexpr std::size_t kChecksumGroup = kChecksumRows * kChecksumColumns;  // words
/// Products of a word and a weight whose sum an i64 holds.
constexpr std::size_t kChecksumProducts = 4;

/// The row that a word of a frame has, which says its weight.
TERSOR_BODY constexpr std::size_t checksum_row(std::uint64_t word) {
  return word / kChecksumColumns % kChecksumRows;
}
/// The exponent of its base.
TERSOR_BODY constexpr std::uint64_t checksum_column(std::uint64_t word) {
  return word % kChecksumColumns + word / kChecksumGroup * kChecksumColumns;
}

/// A smaller number with the same remainder, in [-4, 2^61 + 2].
TERSOR_BODY constexpr std::int64_t fold_checksum(std::int64_t sum) {
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

/// Up to 2^12 sums of kChecksumProducts products, of which no remainder is taken before all are
/// there.
struct ProductSum {
  static constexpr unsigned kHighShift = 48;

  std::uint64_t low = 0;  // modulo 2^64
  std::int32_t high = 0;  // of each sum >> kHighShift

  TERSOR_BODY constexpr void add(std::int64_t products) {
    low += static_cast<std::uint64_t>(products);
    high += static_cast<std::int32_t>(products >> kHighShift);
  }

  /// A number in (0, 2^63) with the remainder of all.
  TERSOR_BODY constexpr std::uint64_t reduced() const {
    // 2^48 · high <= all < 2^48 · (high + 2^12): all - 2^61 · above lies in [0, 2^61 + 2^60). What
    // is taken off is above · P, which leaves at least -2^14, and P is added once.
    const std::int64_t above = high >> (kChecksumBits - kHighShift);
    return low - static_cast<std::uint64_t>(above - 1) * kChecksumPrime;
  }
};

/// The weights of a group's rows, and the powers of the base.
struct ChecksumNumbers {
  static constexpr std::size_t kPowers = 128;  // of each step
  static constexpr std::size_t kSteps = 5;     // base^(i · 128^step): for frames of up to 128 TiB

  alignas(64) std::int32_t weight[kChecksumRows] = {};
  std::uint64_t power[kSteps][kPowers] = {};

  /// base^column
  TERSOR_BODY constexpr std::uint64_t power_of(std::uint64_t column) const {
    std::uint64_t product = power[0][column % kPowers];
    TERSOR_KEEP_LOOP
    for (std::size_t step = 1; (column /= kPowers) != 0; ++step)
      product = multiply_checksums(product, power[step][column % kPowers]);
    return product;
  }
};

/// Numbers 1 to 1025 of splitmix64 (Steele, Lea, Flood 2014), seed 1: the weights are their upper
/// 31 bits less 2^30, the base is the upper 61 of the last.
constexpr ChecksumNumbers make_checksum_numbers() {
  ChecksumNumbers numbers;
  std::uint64_t state = 1;
  const auto next = [&state] { return splitmix64(std::exchange(state, state + kSplitmixStep)); };
  for (std::size_t i = 0; i < kChecksumRows; ++i)
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
