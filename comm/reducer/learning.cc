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

std::string group_name(const Slot& slot, const RuleChoice& choice) {
  const bool scatters = slot.collective == Collective::kReduceScatter;
  return choice.chooser() + ", " + std::string(dtype_name(slot.dtype)) +
         (scatters ? " shards" : "");
}

/// Of the first parameter of a group.
Learner::Group new_group(std::string name, const std::vector<AutoPrediction>& ways) {
  Learner::Group group{.name = std::move(name), .ways = {}};
  for (const AutoPrediction& way : ways) group.ways.push_back({.name = way.way.codec});
  return group;
}

}  // namespace

// Parameters of one rule and dtype go by one codec, each by that codec's quickest way.
void GradientReducer::Impl::make_learner() {
  std::vector<Learner::Group> groups;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (parameter.ways.empty()) continue;
    const std::string name = group_name(slots_[i], parameter.choice);
    auto found = std::ranges::find(groups, name, &Learner::Group::name);
    if (found == groups.end()) found = groups.insert(groups.end(), new_group(name, parameter.ways));
    parameter.group = static_cast<std::size_t>(found - groups.begin());
    const auto message = static_cast<double>(std::max<std::size_t>(1, count_of_message(slots_[i])));
    const double share = static_cast<double>(slots_[i].count) / message;
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

bool GradientReducer::Impl::may_learn() const {
  return learner_ != nullptr && learner_->has_choice() && context_.ranks > 1 &&
         options_.learning == Learning::kOn;
}

bool GradientReducer::Impl::learns() const { return may_learn() && !was_captured_; }

bool GradientReducer::Impl::settled() {
  const auto lock = step_.lock();
  const bool begun = sender_ != nullptr || tuner_ == nullptr || context_.ranks == 1;
  return begun ? !learns() || learner_->settled() : options_.learning == Learning::kOff;
}

void GradientReducer::Impl::take_ways() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Parameter& own = parameters_[i];
    if (!own.ways.empty()) set_way(own, slots_[i], own.ways[learner_->way(own.group)].way);
    if (!own.choice.phases.empty()) enter_phase(i);
  }
}

// What it owes is the same by whichever codec it goes; but by two-shot alone an owner pays.
void GradientReducer::Impl::hand_over(std::size_t parameter) {
  const ValueSpan owner = residuals_.current_owner(parameter);
  if (owner.count() == 0 || parameters_[parameter].algorithm == Algorithm::kTwoShot) return;
  const Slot& slot = slots_[parameter];
  const ValueSpan sender = residuals_.current_sender(parameter);
  std::vector<float> sum = to_floats(sender, stream());
  const std::vector<float> more = to_floats(owner, stream());
  const Owed owed = this->owed(parameter);
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
  auto slowest = static_cast<float>(learner_->seconds());
  agree_on_largest(control(), {&slowest, 1}, options_.timeout, context_.signature);
  const std::vector<std::size_t> before = learner_->ways();
  learner_->agree(double{slowest});
  if (learner_->ways() != before) change_ways();
} catch (const TransportError&) {
  step_.fail(std::current_exception());
  throw;
} catch (const std::exception& error) {
  channel_->poison(error.what());
  step_.fail(std::current_exception());
  throw;
}

// At the beginning of a step. The first one learns the order, and tells nothing.
void GradientReducer::Impl::learn() {
  if (!learns() || step_.number() == learned_step_) return;
  if (residence_->captured()) return begin_capture();
  learned_step_ = step_.number();
  const auto began = std::exchange(step_began_, std::nullopt);
  if (began && learner_->add(seconds_between(*began, step_ended_.value_or(Clock::now()))))
    agree_on_ways();
  step_ended_.reset();
  step_began_ = Clock::now();
}

void GradientReducer::Impl::begin_capture() {
  if (!learner_->settled())
    throw InvalidArgument(
        "codec auto still tries how gradients go: make steps until GradientReducer::settled() says "
        "true, then capture, or set ReducerOptions::learning to kOff");
  was_captured_ = true;
}

// The trainer has waited. On a device for what is queued, which counts where the learner looks.
void GradientReducer::Impl::note_waited() {
  if (!learns()) return;
  if (learner_->looks() && !residence_->captured()) residence_->synchronize();
  step_ended_ = Clock::now();
}

// Begins with what the run that was saved had chosen.
void GradientReducer::Impl::adopt_ways(const ReducerState& state) {
  if (learner_ == nullptr) return;
  std::vector<std::size_t> chosen = learner_->chosen();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& ways = parameters_[i].ways;
    const auto found = std::ranges::find_if(ways, [&](const AutoPrediction& way) {
      return way.way.codec == state.parameters[i].codec;
    });
    if (found != ways.end())
      chosen[parameters_[i].group] = static_cast<std::size_t>(found - ways.begin());
  }
  if (chosen == learner_->chosen()) return;
  learner_->begin_with(chosen);
  const Residence::Entry entry(*residence_);
  change_ways();
}

const std::string& GradientReducer::Impl::chosen_codec(std::size_t parameter) const {
  const Parameter& own = parameters_[parameter];
  return own.ways[learner_->chosen()[own.group]].way.codec;
}

}  // namespace tersor
