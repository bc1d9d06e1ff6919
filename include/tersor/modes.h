// Small choices that codecs, kernels and collectives share.
#pragma once

#include <cstdint>

namespace tersor {

/// How a quantiser rounds: to the nearest code, or up or down at random so that the mean is right.
enum class Rounding : std::uint8_t { kNearest, kStochastic };

/// What decoding does to the values that it meets: overwrite them or add to them.
enum class DecodeMode : std::uint8_t { kAssign, kAdd };

/// What a reduction over ranks yields.
enum class Reduction : std::uint8_t { kSum, kMean };

/// Who gets what a reduction yields: every rank all of it, or each its shard.
enum class Collective : std::uint8_t { kAllreduce, kReduceScatter };

}  // namespace tersor
