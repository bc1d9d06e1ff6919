// Seeded random numbers, equal for every compiler and standard library.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>

namespace trainer {

/// SplitMix64 (Steele, Lea and Flood 2014), with a 64-bit state. Sufficient for shuffling images
/// and drawing initial weights.
class Random {
 public:
  /// Makes a separate stream for each list of words, e.g. {seed, epoch, rank}.
  explicit Random(std::initializer_list<std::uint64_t> words) {
    for (const std::uint64_t word : words) state_ = next() ^ word;
  }

  /// Returns 64 random bits.
  std::uint64_t next() {
    std::uint64_t bits = state_ += 0x9e3779b97f4a7c15;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    return bits ^ (bits >> 31);
  }

  /// Uniform in [-1, 1), in steps of 2^-23.
  float symmetric() { return static_cast<float>(next() >> 40) * 0x1p-23f - 1.0f; }

  /// Uniform below `limit`. The limit is at least 1 and far below 2^32, so the bias is negligible.
  std::uint32_t below(std::uint32_t limit) {
    return static_cast<std::uint32_t>((next() >> 32) * limit >> 32);
  }

 private:
  std::uint64_t state_ = 0;
};

/// The shuffle of Fisher and Yates.
inline void shuffle(std::span<std::uint32_t> values, Random& random) {
  for (std::size_t left = values.size(); left > 1; --left)
    std::swap(values[left - 1], values[random.below(static_cast<std::uint32_t>(left))]);
}

}  // namespace trainer
