// Changes of codec and algorithm between steps: by a schedule, or by "auto" while training
// continues. The duration of a step lasts from its first ready gradient until the trainer has
// waited for the last gradient.
#include "comm/reducer/impl.h"
#include "comm/tuning/link_probe.h"

#include <string>
#include <vector>

namespace tersor {

// Call between two steps.
void GradientReducer::Impl::follow_phases(LockedStep& step) {
  if (!ways_.scheduled()) return;
  if (residence_->captured()) ways_.check_capture(training_step(step));
  if (!ways_.enters_phase(training_step(step))) return;
  fail_together(step, [&] { change_ways(step); });
}

// A codec cannot use the memory of its predecessor.
void GradientReducer::Impl::take_ways(LockedStep& step) {
  for (const std::size_t entered : ways_.take(training_step(step)))
    parameters_.residuals.clear_memory(entered);
}

// No work is under way, including work on a device.
void GradientReducer::Impl::change_ways(LockedStep& step) {
  const Residence::Entry entry(*residence_);
  residence_->synchronize();
  take_ways(step);
  parameters_.hand_over(stream());
  parameters_.bind();
  context_.set_agreement(parameters_.agreement(ways_.learns()));
  sender_->forget_messages(step);
}

void GradientReducer::Impl::agree_on_ways(LockedStep& step) {
  fail_together(step, [&] {
    const Residence::Entry entry(*residence_);
    auto slowest = static_cast<float>(ways_.seconds());
    agree_on_largest(control(), {&slowest, 1}, options_.timeout, context_.signature,
                     context_.agreement);
    if (!ways_.agree(double{slowest})) return;
    totals_.record_codec_change();
    change_ways(step);
  });
}

// Call at the beginning of a step.
void GradientReducer::Impl::learn(LockedStep& step) {
  if (!ways_.learns() || !ways_.is_new(step->number())) return;
  if (residence_->captured()) return ways_.begin_capture();
  if (ways_.end_step()) agree_on_ways(step);
  ways_.begin_step(step->number());
}

// The trainer has waited. If the learner measures this step, the host also waits for the device to
// include queued work.
void GradientReducer::Impl::record_wait() {
  if (!ways_.learns()) return;
  if (ways_.looks() && !residence_->captured()) residence_->synchronize();
  ways_.record_wait();
}

void GradientReducer::Impl::adopt_ways(LockedStep& step, const ReducerState& state) {
  std::vector<std::string> codecs;
  for (const ReducerState::Parameter& one : state.parameters) codecs.push_back(one.codec);
  if (ways_.adopt(codecs)) change_ways(step);
}

}  // namespace tersor
