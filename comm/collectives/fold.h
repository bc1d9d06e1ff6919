// What a rank keeps by error feedback as one residual: an owner's, which is of a part that other
// ranks would share in another way, folded into the sender's. For checkpoints that fit any ranks,
// and for ranks that go on without some.
#pragma once

#include "comm/collectives/planner.h"

#include <cstddef>
#include <span>
#include <vector>

namespace tersor {

/// Of one parameter, as a rank keeps them.
struct KeptResiduals {
  std::span<const float> sender;  ///< of what it encodes: from Slot::residual_first on, or shards
  std::span<const float> owner;   ///< of Slot::owned, stage after stage
};

/// Values of a parameter from `first` on, each of which counts for `unit` in the sum over ranks
/// that a mean is made of.
struct FoldInto {
  std::span<float> values;
  std::size_t first = 0;
  float unit = 1;
};

/// Adds what a rank owes as an owner.
void fold_owner(std::span<const float> owner, const Slot& slot, const Owed& owed,
                const FoldInto& into);

/// What a rank owes, at its places in a parameter of `count` values, without padding: in units of
/// the sum over ranks that a mean is made of. Over ranks they add up to what all of them owe.
std::vector<float> folded(const KeptResiduals& own, const Slot& slot, const Owed& owed,
                          std::size_t count);

/// Of a residual of the whole parameter the `count` values that a rank keeps as a sender; its
/// padding has none.
std::vector<float> residual_part(std::span<const float> whole, const Slot& slot, std::size_t count);

}  // namespace tersor
