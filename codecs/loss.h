// The size and the squared error of an encoded gradient.
#pragma once

#include "codecs/planned_codec.h"

#include <cstddef>
#include <string_view>

namespace tersor {

/// Number of ranks for the levels of a codec without frames.
inline constexpr std::size_t kNominalRanks = 8;

/// The loss between p, the encoded value, and d, the decoded value. Sums are computed in double.
struct CodecLoss {
  std::size_t payload_bytes = 0;  ///< bytes of all rounds
  double energy = 0;              ///< |p|²
  double energy_lost = 0;         ///< |p − d|²

  double relative_error() const;  ///< |p − d| / |p|; 0 if p is all zeros
};

/// Plans the codec without feedback. A codec without frames is planned for `nominal_ranks` ranks.
PlannedCodec plan_without_feedback(std::string_view spec, PlanInput plan_input,
                                   std::size_t nominal_ranks = kNominalRanks);

/// Encodes and decodes once in host memory, without feedback or a codec memory.
CodecLoss measure_loss(const PlannedCodec& codec, ConstValueSpan gradient);

}  // namespace tersor
