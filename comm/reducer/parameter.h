// A parameter as a reducer knows it, beside its slot, and what is kept of it between steps.
#pragma once

#include "comm/collectives/hierarchy.h"
#include "comm/collectives/planner.h"
#include "comm/reducer/rules.h"

#include <tersor/auto.h>
#include <tersor/reducer.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tersor {

struct ReducerParameter {
  std::string name;
  RuleChoice choice;
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t count = 0;    ///< without padding
  std::uint32_t order = 0;  ///< of its values
  bool given_anew = false;  ///< its gradient lasts for one step: the slot has it from ready() on
  ValueSpan gradient = {};
  double relative_error = 0;
  std::vector<AutoPrediction> ways = {};  ///< "auto": each codec's quickest; else empty
  std::size_t group = 0;                  ///< of the learner's
  bool owes_later = false;                ///< some phase goes two-shot

  const RulePhase& phase(std::uint32_t step) const;
  /// Whether it ever owes as an owner.
  bool may_go_two_shot() const {
    return algorithm == Algorithm::kTwoShot || !ways.empty() || owes_later;
  }
};

/// What a rank keeps residuals of: of what it encodes, and of what it owns and encodes once more.
StateRanges kept_ranges(const ExchangeContext& context, const ReducerParameter& own,
                        const Slot& slot, int rank);

/// What the values of its residuals count for in the sum over ranks.
Owed owed(const ExchangeContext& context, const Slot& slot);

/// Values of a codec's own memory; and of the codec's that needs most, where a schedule has
/// several.
std::size_t memory_count(const Slot& slot, const Codec& codec);
inline std::size_t memory_count(const Slot& slot) { return memory_count(slot, *slot.codec); }
std::size_t most_memory(const ReducerParameter& own, const Slot& slot);

}  // namespace tersor
