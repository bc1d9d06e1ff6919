// Schedules: codecs that change at given steps. All ranks count steps alike, so that there is
// nothing to agree on.
#include "comm/reducer/impl.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tersor {

const RulePhase& GradientReducer::Impl::Parameter::phase(std::uint32_t step) const {
  const auto later = std::ranges::upper_bound(phases, step, {}, &RulePhase::from_step);
  return *std::prev(later);
}

// All phases are tried, and the first one stays: what cannot go says so now.
void GradientReducer::Impl::choose_phases(Parameter& own, Slot& slot,
                                          std::vector<RulePhase> phases) {
  own.phases = std::move(phases);
  for (const RulePhase& phase : own.phases)
    slot.least_unit = std::max(slot.least_unit, phase.codec->traits().unit);
  for (auto phase = own.phases.rbegin(); phase != own.phases.rend(); ++phase)
    set_codec(own, slot, phase->codec);
}

void GradientReducer::Impl::set_codec(Parameter& own, Slot& slot,
                                      std::shared_ptr<const Codec> codec) const {
  slot.codec = std::move(codec);
  set_algorithm(own, slot);
}

bool GradientReducer::Impl::in_phase(std::uint32_t step) const {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (!parameters_[i].phases.empty() && parameters_[i].phase(step).codec != slots_[i].codec)
      return false;
  return true;
}

// Between two steps.
void GradientReducer::Impl::follow_phases() {
  check_last_phase();
  const std::uint32_t step = training_step();
  if (followed_step_ == step) return;
  followed_step_ = step;
  if (in_phase(step)) return;
  const Residence::Entry entry(*residence_);
  sender_->or_fail([this] { change_ways(); });
}

// A graph does one step again and again.
void GradientReducer::Impl::check_last_phase() const {
  if (!residence_->captured()) return;
  for (const Parameter& one : parameters_)
    if (!one.phases.empty() && one.phases.back().from_step > training_step())
      throw InvalidArgument("\"" + one.name + "\" changes its codec at step " +
                            std::to_string(one.phases.back().from_step) +
                            ": a step can be captured from then on");
}

}  // namespace tersor
