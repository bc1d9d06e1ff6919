// Small enumerations for codecs, kernels and collectives.
#pragma once

#include <cstdint>

namespace tersor {

/// How a quantiser rounds: to the nearest code, or up or down at random with the correct mean.
enum class Rounding : std::uint8_t { kNearest, kStochastic };

/// How `decode` writes its outputs: overwrite the values, or add to the values.
enum class DecodeMode : std::uint8_t { kAssign, kAdd };

/// The result of a reduction over ranks.
enum class Reduction : std::uint8_t { kSum, kMean };

/// The receivers of a reduction's result: every rank the whole result, or each rank its shard.
enum class Collective : std::uint8_t { kAllreduce, kReduceScatter };

}  // namespace tersor
