// Parameters that go another way from one step to the next: as a schedule has it, or as "auto"
// learns while training goes on. A step's time is taken from its first ready gradient until the
// trainer has waited for the last.
#include "comm/collectives/host_copy.h"
#include "comm/reducer/impl.h"
#include "comm/tuning/link_probe.h"

#include <string>
#include <vector>

namespace tersor {

// Between two steps.
void GradientReducer::Impl::follow_phases() {
  if (!ways_.scheduled()) return;
  if (residence_->captured()) ways_.check_capture(training_step());
  if (!ways_.enters_phase(training_step())) return;
  const Residence::Entry entry(*residence_);
  sender_->or_fail([this] { change_ways(); });
}

bool GradientReducer::Impl::settled() {
  const auto lock = step_.lock();
  return ways_.settled(sender_ != nullptr);
}

// Another codec has no use for the memory of the one before.
void GradientReducer::Impl::take_ways() {
  for (const std::size_t entered : ways_.take(training_step())) residuals_.clear_memory(entered);
}

// What it owes is the same by whichever codec it goes; but by two-shot alone an owner pays.
void GradientReducer::Impl::hand_over(std::size_t parameter) {
  const ValueSpan owner = residuals_.current_owner(parameter);
  if (owner.count() == 0 || parameters_[parameter].algorithm == Algorithm::kTwoShot) return;
  const Slot& slot = slots_[parameter];
  const ValueSpan sender = residuals_.current_sender(parameter);
  std::vector<float> sum = to_floats(sender, stream());
  const std::vector<float> more = to_floats(owner, stream());
  const Owed owed = tersor::owed(context_, slot);
  auto value = more.begin();
  for (std::size_t stage = 0; stage < owed.owner.size(); ++stage) {
    const Range& range = slot.owned.stages[stage];
    for (std::size_t i = 0; i < range.count; ++i)
      sum[range.first - slot.residual_first + i] += owed.owner[stage] / owed.sender * *value++;
  }
  from_floats(sum, 1.0f, sender, stream());
  residuals_.clear_owner(parameter);
}

// Nothing is under way, on a device either.
void GradientReducer::Impl::change_ways() {
  residence_->synchronize();
  take_ways();
  for (std::size_t i = 0; i < slots_.size(); ++i) hand_over(i);
  bind_residuals();
  context_.signature = fields().signature();
  sender_->forget_messages();
}

// What fails here fails on all ranks, and they hear of it.
void GradientReducer::Impl::agree_on_ways() try {
  const Residence::Entry entry(*residence_);
  auto slowest = static_cast<float>(ways_.seconds());
  agree_on_largest(control(), {&slowest, 1}, options_.timeout, context_.signature);
  if (ways_.agree(double{slowest})) change_ways();
} catch (const TransportError&) {
  step_.fail(std::current_exception());
  throw;
} catch (const std::exception& error) {
  channel_->poison(error.what());
  step_.fail(std::current_exception());
  throw;
}

// At the beginning of a step.
void GradientReducer::Impl::learn() {
  if (!ways_.learns() || !ways_.is_new(step_.number())) return;
  if (residence_->captured()) return ways_.begin_capture();
  if (ways_.end_step()) agree_on_ways();
  ways_.begin_step(step_.number());
}

// The trainer has waited. On a device for what is queued, which counts where the learner looks.
void GradientReducer::Impl::note_waited() {
  if (!ways_.learns()) return;
  if (ways_.looks() && !residence_->captured()) residence_->synchronize();
  ways_.note_waited();
}

void GradientReducer::Impl::adopt_ways(const ReducerState& state) {
  std::vector<std::string> codecs;
  for (const ReducerState::Parameter& one : state.parameters) codecs.push_back(one.codec);
  if (!ways_.adopt(codecs)) return;
  const Residence::Entry entry(*residence_);
  change_ways();
}

}  // namespace tersor
