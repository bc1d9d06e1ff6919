// Folds the owner's residual into the sender's residual. The owner's parts depend on the number of
// ranks, but the folded residual does not. Used for checkpoints valid for any number of ranks, and
// for continuing without lost ranks.
#pragma once

#include "comm/collectives/planner.h"

#include <cstddef>
#include <span>
#include <vector>

namespace tersor {

/// The residuals of a parameter on a rank.
struct RankResiduals {
  /// Residual of the encoded values, from ParameterFeedback::sender_first or of the shards.
  std::span<const float> sender;
  std::span<const float> owner;  ///< of ParameterFeedback::owned, stage by stage
};

/// The values of a parameter from `first`. Each is expressed in multiples of `unit` of the
/// undivided sum of a mean.
struct FoldTarget {
  std::span<float> values;
  std::size_t first = 0;
  float unit = 1;
};

/// Adds the owner's residual of a rank.
void fold_owner(std::span<const float> owner, const ParameterFeedback& feedback,
                const ResidualScales& scales, const FoldTarget& target);

/// The folded residual of a parameter of `count` values, without padding, in units of the undivided
/// sum of a mean. The sum over ranks is the residual of all ranks.
std::vector<float> folded(const RankResiduals& own, const ParameterFeedback& feedback,
                          const ResidualScales& scales, std::size_t count);

/// The `count` values of a whole residual stored by a rank as a sender; 0 in the padding.
std::vector<float> residual_part(std::span<const float> whole, const ParameterFeedback& feedback,
                                 std::size_t count);

}  // namespace tersor
