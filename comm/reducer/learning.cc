// Changes of codec and algorithm between steps: by a schedule, or by "auto" while training
// continues. The duration of a step lasts from its first ready gradient until the trainer has
// waited for the last gradient.
#include "comm/reducer/impl.h"
#include "comm/tuning/link_probe.h"

#include <string>
#include <vector>

namespace tersor {

// Call between two steps.
void GradientReducer::Impl::apply_phases(LockedStep& step) {
  if (!policy_.scheduled()) return;
  if (backend_->captured()) policy_.check_capture(training_step(step));
  if (!policy_.enters_phase(training_step(step))) return;
  run_or_fail(step, [&] { change_policy(step); });
}

// A codec cannot use the memory of its predecessor.
void GradientReducer::Impl::apply_policy(LockedStep& step) {
  for (const std::size_t entered : policy_.apply(training_step(step)))
    parameters_.residuals.clear(entered, Residuals::kMemory);
}

// No work is under way, including work on a device.
void GradientReducer::Impl::change_policy(LockedStep& step) {
  backend_->synchronize();
  apply_policy(step);
  parameters_.fold_unused_owners(stream());
  parameters_.bind();
  context_.set_agreement(parameters_.agreement(policy_.learns()));
  sender_->drop_messages(step);
}

void GradientReducer::Impl::agree_on_policy(LockedStep& step) {
  run_or_fail(step, [&] {
    auto slowest = static_cast<float>(policy_.seconds());
    agree_on_maximum(control(), {&slowest, 1}, options_.timeout, context_.signature,
                     context_.call.agreement);
    if (!policy_.agree(double{slowest})) return;
    totals_.record_codec_change();
    change_policy(step);
  });
}

// Call at the beginning of a step.
void GradientReducer::Impl::update_learner(LockedStep& step) {
  if (!policy_.learns() || !policy_.is_new(step->number())) return;
  if (backend_->captured()) return policy_.begin_capture();
  if (policy_.end_step()) agree_on_policy(step);
  policy_.begin_step(step->number());
}

// The trainer has waited. If the learner measures this step, the host also waits for the device to
// include queued work.
void GradientReducer::Impl::record_wait() {
  if (!policy_.learns()) return;
  if (policy_.is_measuring() && !backend_->captured()) backend_->synchronize();
  policy_.record_wait();
}

void GradientReducer::Impl::adopt_policy(LockedStep& step, const ReducerState& state) {
  std::vector<std::string> codecs;
  for (const ReducerState::Parameter& one : state.parameters) codecs.push_back(one.codec);
  if (policy_.adopt(codecs)) change_policy(step);
}

}  // namespace tersor
