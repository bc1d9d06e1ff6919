// What "auto" learns while training goes on: a step's time is taken from its first ready gradient
// until the trainer has waited for the last, and between steps parameters may go another way.
#include "comm/collectives/host_copy.h"
#include "comm/reducer/impl.h"
#include "comm/tuning/link_probe.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace tersor {
namespace {

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

std::string group_name(const Slot& slot, const std::string& reason) {
  const bool scatters = slot.collective == Collective::kReduceScatter;
  return reason + ", " + std::string(dtype_name(slot.dtype)) + (scatters ? " shards" : "");
}

/// Of the first parameter of a group.
Learner::Group new_group(std::string name, const std::vector<AutoPrediction>& ways) {
  Learner::Group group{.name = std::move(name), .ways = {}};
  for (const AutoPrediction& way : ways) group.ways.push_back({.codec = way.way.codec});
  return group;
}

}  // namespace

// Parameters of one rule and dtype go by one codec, each by that codec's quickest way.
void GradientReducer::Impl::make_learner() {
  std::vector<Learner::Group> groups;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (parameter.ways.empty()) continue;
    const std::string name = group_name(slots_[i], parameter.reason);
    auto found = std::ranges::find(groups, name, &Learner::Group::name);
    if (found == groups.end()) found = groups.insert(groups.end(), new_group(name, parameter.ways));
    parameter.group = static_cast<std::size_t>(found - groups.begin());
    const double share =
        static_cast<double>(slots_[i].count) / static_cast<double>(count_of_message(slots_[i]));
    for (std::size_t way = 0; way < parameter.ways.size(); ++way)
      found->ways[way].predicted += share * parameter.ways[way].seconds;
  }
  if (groups.empty()) return;
  for (Learner::Group& group : groups)
    group.chosen = static_cast<std::size_t>(
        std::ranges::min_element(group.ways, {}, &Learner::Way::predicted) - group.ways.begin());
  learner_ = std::make_unique<Learner>(std::move(groups));
  take_ways();
}

bool GradientReducer::Impl::learns() const {
  return learner_ != nullptr && learner_->has_choice() && context_.ranks > 1 &&
         options_.automatic.learning == Learning::kOn;
}

bool GradientReducer::Impl::settled() {
  const auto lock = step_.lock();
  return !learns() || learner_->settled();
}

void GradientReducer::Impl::take_ways() {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (!parameters_[i].ways.empty())
      set_way(parameters_[i], slots_[i],
              parameters_[i].ways[learner_->way(parameters_[i].group)].way);
}

// What it owes is the same by whichever codec it goes; but by two-shot alone an owner pays.
void GradientReducer::Impl::hand_over(std::size_t parameter) {
  const ValueSpan owner = residuals_.current_owner(parameter);
  if (owner.count() == 0 || parameters_[parameter].algorithm == Algorithm::kTwoShot) return;
  const Slot& slot = slots_[parameter];
  const ValueSpan own = residuals_.current_sender(parameter).subspan(
      slot.owner_first - slot.residual_first, owner.count());
  std::vector<float> sum = to_floats(own, stream());
  const std::vector<float> more = to_floats(owner, stream());
  std::ranges::transform(sum, more, sum.begin(), std::plus<>());
  from_floats(sum, 1.0f, own, stream());
  residuals_.clear_owner(parameter);
}

// Nothing is under way, on a device either.
void GradientReducer::Impl::change_ways() {
  const Residence::Entry entry(*residence_);
  residence_->synchronize();
  take_ways();
  for (std::size_t i = 0; i < slots_.size(); ++i) hand_over(i);
  bind_residuals();
  context_.signature = signature();
  sender_->forget_messages();
}

void GradientReducer::Impl::agree_on_ways() {
  auto slowest = static_cast<float>(learner_->seconds());
  agree_on_largest(control(), {&slowest, 1}, options_.timeout);
  const std::string before = ways_text();
  learner_->agree(double{slowest});
  if (ways_text() != before) change_ways();
}

std::string GradientReducer::Impl::ways_text() const {
  std::string text;
  for (const Parameter& parameter : parameters_)
    if (!parameter.ways.empty()) text += std::to_string(learner_->way(parameter.group)) + " ";
  return text;
}

// With the first ready gradient of a step. The first step learns the order, and tells nothing.
void GradientReducer::Impl::learn() try {
  if (!learns() || step_.number() == learned_step_) return;
  learned_step_ = step_.number();
  if (residence_->captured()) return check_settled();
  const auto began = std::exchange(step_began_, std::nullopt);
  if (began && learner_->add(seconds_between(*began, step_ended_.value_or(Clock::now()))))
    agree_on_ways();
  step_ended_.reset();
  step_began_ = Clock::now();
} catch (const InvalidArgument&) {
  throw;
} catch (...) {
  step_.fail(std::current_exception());
  throw;
}

// A graph goes on as it was captured.
void GradientReducer::Impl::check_settled() const {
  if (!learner_->settled())
    throw InvalidArgument(
        "codec auto still tries how gradients go: make steps until GradientReducer::settled() says "
        "true, then capture, or set AutoOptions::learning to kOff");
}

// The trainer has waited. On a device for what is queued, which counts where the learner looks.
void GradientReducer::Impl::note_waited() {
  if (!learns()) return;
  if (learner_->looks() && !residence_->captured()) residence_->synchronize();
  step_ended_ = Clock::now();
}

// As in the run that was saved: what it tried is not tried again.
void GradientReducer::Impl::adopt_ways(const ReducerState& state) {
  if (learner_ == nullptr || state.parameters.size() != parameters_.size()) return;
  std::vector<std::size_t> chosen = learner_->chosen();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& ways = parameters_[i].ways;
    const auto found = std::ranges::find_if(ways, [&](const AutoPrediction& way) {
      return way.way.codec == state.parameters[i].codec;
    });
    if (found != ways.end())
      chosen[parameters_[i].group] = static_cast<std::size_t>(found - ways.begin());
  }
  learner_->settle(chosen);
  change_ways();
}

}  // namespace tersor
