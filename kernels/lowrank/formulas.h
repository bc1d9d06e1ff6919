// lowrank: in which order sums are made, how columns are scaled, and what is drawn.
#pragma once

#include "kernels/scalar/philox.h"

#include <tersor/align.h>

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

constexpr std::size_t kLowrankChains = 64;    // of a sum; also the rows of one chain of W
constexpr std::size_t kLowrankMostRank = 32;  // of the option
constexpr std::uint64_t kLowrankKey = 0x6c6f7772616e6b21u;
/// What others must leave of a column of length 1 the second time that they are taken out of it.
/// Where they leave less it was theirs, but for roundings: its direction would count twice.
constexpr float kLowrankLeast = 0.5f;

/// Where the next column of a matrix begins that is read in whole chains: zeros fill the gap.
constexpr std::size_t lowrank_stride(std::size_t count) { return align_up(count, kLowrankChains); }

/// One NaN for all: which of several an operation hands on differs among machines.
TERSOR_BODY float canonical(float value) { return value == value ? value : float_of(kNanBits); }

/// Value `index` of the directions that a cold start takes.
TERSOR_BODY float lowrank_drawn(std::uint64_t index, std::uint32_t parameter) {
  const PhiloxWords words =
      philox({{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
               0xffffffffu, parameter}},
             kLowrankKey);
  return static_cast<float>(static_cast<std::int32_t>(words.word[0])) * 0x1p-31f;
}

/// The power of two that brings a finite magnitude from 2^-126 on into [1, 2): exactly, as one
/// product of two, since one alone may not be a number.
struct PowerOfTwo {
  float first, second;
  TERSOR_BODY float operator()(float value) const { return value * first * second; }
};
TERSOR_BODY PowerOfTwo to_unit(float magnitude) {
  const int exponent = static_cast<int>(bits_of(magnitude) >> 23) - 127;
  const int half = exponent / 2;
  const auto power = [](int e) { return float_of(static_cast<std::uint32_t>(127 + e) << 23); };
  return {power(-half), power(half - exponent)};
}

/// The power of two at or below a magnitude's bits; 0 where that is no normal number.
TERSOR_BODY float power_below(std::uint32_t magnitude_bits) {
  return float_of(magnitude_bits & kInfinityBits);
}

}  // namespace tersor::kernels
