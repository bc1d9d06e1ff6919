// Schedules: codecs that change at given steps. All ranks count steps alike, so that there is
// nothing to agree on.
#include "comm/reducer/impl.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tersor {

const RulePhase& GradientReducer::Impl::Parameter::phase(std::uint32_t step) const {
  const auto later = std::ranges::upper_bound(choice.phases, step, {}, &RulePhase::from_step);
  return *std::prev(later);
}

// All phases are tried, and the first one stays: what cannot go says so now.
void GradientReducer::Impl::try_phases(Parameter& own, Slot& slot) {
  const std::vector<RulePhase>& phases = own.choice.phases;
  schedules_ |= !phases.empty();
  for (const RulePhase& phase : phases)
    slot.least_unit = std::max(slot.least_unit, unit_of(*phase.codec, slot.count));
  for (auto phase = phases.rbegin(); phase != phases.rend(); ++phase) {
    set_codec(own, slot, phase->codec);
    own.owes_later |= own.algorithm == Algorithm::kTwoShot;
  }
}

void GradientReducer::Impl::set_codec(Parameter& own, Slot& slot,
                                      std::shared_ptr<const Codec> codec) const {
  slot.codec = std::move(codec);
  set_algorithm(own, slot);
}

// Another codec has no use for the memory of the one before.
void GradientReducer::Impl::enter_phase(std::size_t parameter) {
  const auto& codec = parameters_[parameter].phase(training_step()).codec;
  if (codec == slots_[parameter].codec) return;
  residuals_.clear_memory(parameter);
  set_codec(parameters_[parameter], slots_[parameter], codec);
}

bool GradientReducer::Impl::in_phase(std::uint32_t step) const {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (!parameters_[i].choice.phases.empty() &&
        parameters_[i].phase(step).codec != slots_[i].codec)
      return false;
  return true;
}

// Between two steps.
void GradientReducer::Impl::follow_phases() {
  if (!schedules_) return;
  check_capture_of_phase();
  const std::uint32_t step = training_step();
  if (followed_step_ == step) return;
  followed_step_ = step;
  if (in_phase(step)) return;
  const Residence::Entry entry(*residence_);
  if (learner_ != nullptr) learner_->begin_with(learner_->chosen());  // steps take another time
  sender_->or_fail([this] { change_ways(); });
}

// A graph does one step again and again.
void GradientReducer::Impl::check_capture_of_phase() const {
  if (!residence_->captured()) return;
  const bool followed = in_phase(training_step());
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (const auto& phases = parameters_[i].choice.phases;
        !phases.empty() && (!followed || training_step() < phases.back().from_step))
      throw InvalidArgument("\"" + parameters_[i].name + "\" changes its codec at step " +
                            std::to_string(phases.back().from_step) +
                            ": a step can be captured once one was made after that");
}

}  // namespace tersor
