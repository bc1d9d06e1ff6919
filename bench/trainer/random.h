// Seeded random numbers that are the same with every compiler and standard library.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>

namespace trainer {

/// SplitMix64 (Steele, Lea and Flood 2014): one 64-bit word of state, good enough to shuffle images
/// and to draw first weights.
class Random {
 public:
  /// A stream of its own for each list of words, e.g. {seed, epoch, rank}.
  explicit Random(std::initializer_list<std::uint64_t> words) {
    for (const std::uint64_t word : words) state_ = next() ^ word;
  }

  /// 64 random bits.
  std::uint64_t next() {
    std::uint64_t bits = state_ += 0x9e3779b97f4a7c15;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    return bits ^ (bits >> 31);
  }

  /// Uniform in [-1, 1), in steps of 2^-23.
  float symmetric() { return static_cast<float>(next() >> 40) * 0x1p-23f - 1.0f; }

  /// Uniform below `limit`, which is at least 1 and far below 2^32, so that the bias is negligible.
  std::uint32_t below(std::uint32_t limit) {
    return static_cast<std::uint32_t>((next() >> 32) * limit >> 32);
  }

 private:
  std::uint64_t state_ = 0;
};

/// Fisher and Yates.
inline void shuffle(std::span<std::uint32_t> values, Random& random) {
  for (std::size_t left = values.size(); left > 1; --left)
    std::swap(values[left - 1], values[random.below(static_cast<std::uint32_t>(left))]);
}

}  // namespace trainer
