// What a codec makes of one gradient: bytes, and the energy that is lost.
#pragma once

#include "codecs/planned_codec.h"

#include <cstddef>
#include <string_view>

namespace tersor {

/// Ranks among whom a codec that sends bare values alone shares its levels.
inline constexpr std::size_t kSharingRanks = 8;

/// Of p, what was sent, and d, what was decoded; sums in double.
struct CodecLoss {
  std::size_t payload_bytes = 0;  ///< of all rounds
  double energy = 0;              ///< |p|²
  double energy_lost = 0;         ///< |p − d|²

  double relative_error() const;  ///< |p − d| / |p|; 0 where p is all zeros
};

/// The codec without feedback; one that sends bare values alone as one of so many ranks.
PlannedCodec plan_alone(std::string_view spec, PlanFor plan_for,
                        std::size_t sharing_ranks = kSharingRanks);

/// Encodes and decodes once, without feedback or anything remembered. Host memory.
CodecLoss measure_loss(const PlannedCodec& codec, ConstValueSpan gradient);

}  // namespace tersor
