#include "comm/reducer/parameter.h"

#include <algorithm>
#include <iterator>

namespace tersor {

const RulePhase& ReducerParameter::phase(std::uint32_t step) const {
  const auto later = std::ranges::upper_bound(choice.phases, step, {}, &RulePhase::from_step);
  return *std::prev(later);
}

StateRanges kept_ranges(const ExchangeContext& context, const ReducerParameter& own,
                        const Slot& slot, int rank) {
  StateRanges kept = state_ranges(context, slot, rank);
  const bool feeds_back = slot.codec->has_feedback();
  const bool scatters = slot.collective == Collective::kReduceScatter;
  if (!feeds_back) kept.encoded.count = 0;
  if (!feeds_back || scatters || !own.may_go_two_shot()) kept.owned = {};
  return kept;
}

Owed owed(const ExchangeContext& context, const Slot& slot) {
  return context.reduction == Reduction::kSum ? Owed{} : Planner(context).owed(slot);
}

std::size_t memory_count(const Slot& slot, const Codec& codec) {
  return codec.memory_count({.count = slot.count, .rows = slot.rows, .columns = slot.columns});
}

std::size_t most_memory(const ReducerParameter& own, const Slot& slot) {
  std::size_t most = memory_count(slot);
  for (const RulePhase& phase : own.choice.phases)
    most = std::max(most, memory_count(slot, *phase.codec));
  return most;
}

}  // namespace tersor
