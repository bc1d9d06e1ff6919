// lowrank: constants and formulas for the order of sums, the scaling of columns, and random
// directions.
#pragma once

#include "kernels/scalar/philox.h"

#include <tersor/align.h>

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

constexpr std::size_t kLowrankChains = 64;   // chains per sum; also the rows per chain of W
constexpr std::size_t kLowrankMaxRank = 32;  // largest value of the option
constexpr std::uint64_t kLowrankKey = 0x6c6f7772616e6b21u;
/// The minimum remaining length of a unit column in the second orthogonalisation pass. If less
/// remains, the column lies in the span of earlier columns, except for rounding errors, and becomes
/// 0. Otherwise its direction would count twice.
constexpr float kLowrankMinLength = 0.5f;

/// Returns the distance between columns of a matrix that is read in whole chains. Zeros fill the
/// gap.
constexpr std::size_t lowrank_stride(std::size_t count) { return align_up(count, kLowrankChains); }

/// Replaces every NaN by the same NaN. Machines differ in the NaN that an operation propagates.
TERSOR_BODY float canonical(float value) { return value == value ? value : float_of(kNanBits); }

/// Returns value `index` of the random directions of a cold start.
TERSOR_BODY float lowrank_random(std::uint64_t index, std::uint32_t parameter) {
  const PhiloxWords words =
      philox({{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
               0xffffffffu, parameter}},
             kLowrankKey);
  return static_cast<float>(static_cast<std::int32_t>(words.word[0])) * 0x1p-31f;
}

/// A power of two that scales a finite magnitude of at least 2^-126 into [1, 2), exactly. The power
/// is the product of two factors, because a single factor may not be representable.
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

/// Returns the power of two at or below a magnitude's bits, or 0 if the magnitude is not normal.
TERSOR_BODY float power_below(std::uint32_t magnitude_bits) {
  return float_of(magnitude_bits & kInfinityBits);
}

}  // namespace tersor::kernels
