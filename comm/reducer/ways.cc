#include "comm/reducer/ways.h"

#include "comm/calls/arguments.h"
#include "comm/collectives/choose.h"
#include "comm/collectives/hierarchy.h"
#include "comm/reducer/buckets.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tersor {
namespace {

// True if "auto" chooses the codec. "auto" also chooses the algorithm.
bool wants_tuner(const ReducerOptions& options) {
  bool wanted = options.rules.empty() && options.codec == kAutoCodec;
  for (const ReducerRule& rule : options.rules) wanted |= rule.codec == kAutoCodec;
  if (wanted && options.algorithm != Algorithm::kAuto)
    throw InvalidArgument("codec auto chooses the algorithm too: leave it at auto, not " +
                          std::string(algorithm_name(options.algorithm)));
  return wanted;
}

std::string group_name(const Slot& slot, const RuleChoice& choice) {
  const bool scatters = slot.collective == Collective::kReduceScatter;
  return choice.chooser() + ", " + std::string(dtype_name(slot.dtype)) +
         (scatters ? " shards" : "");
}

/// Uses the predictions of the group's first parameter.
Learner::Group new_group(std::string name, const std::vector<AutoPrediction>& ways) {
  Learner::Group group{.name = std::move(name), .ways = {}};
  for (const AutoPrediction& way : ways) group.ways.push_back({.name = way.way.codec});
  return group;
}

}  // namespace

Ways::Ways(Parameters& parameters)
    : parameters_(parameters),
      options_(parameters.options()),
      algorithm_(options_.algorithm == Algorithm::kHierarchical ? Algorithm::kAuto
                                                                : options_.algorithm),
      rules_(options_) {}

void Ways::find_tuner(Transport& transport) {
  if (!wants_tuner(options_)) return;
  if (options_.tuner == nullptr)
    own_tuner_ = std::make_unique<Tuner>(transport, options_.automatic);
  tuner_ = options_.tuner != nullptr ? options_.tuner : own_tuner_.get();
}

// Applies the rules to the parameter without padding. A tuner chooses for "auto".
void Ways::choose(ReducerParameter& own, Slot& slot) {
  own.choice = rules_.choose({own.name, own.count, slot.rows, slot.columns, slot.dtype});
  if (single_host_codec_ != nullptr) own.choice = {single_host_codec_, RuleChoice::Why::kOneHost};
  if (own.choice.automatic()) return choose_way(own, slot);
  set_codec(own, slot, own.choice.codec);
  try_phases(own, slot);
}

void Ways::choose_way(ReducerParameter& own, Slot& slot) {
  check_tuner_memory(*tuner_, parameters_.memory());
  own.ways = tuner_->predict_each(slot.dtype, count_of_message(slot), slot.collective,
                                  parameters_.context().grid.digits());
  for (const AutoPrediction& prediction : own.ways)
    slot.least_unit =
        std::max(slot.least_unit, unit_of(*rules_.codec(prediction.way.codec), slot.count));
  set_way(own, slot, std::ranges::min_element(own.ways, {}, &AutoPrediction::seconds)->way);
}

// A parameter in a shared message is predicted with the size of the whole message, because the
// parameter adds bytes but no latency.
std::size_t Ways::count_of_message(const Slot& slot) const {
  return std::max(slot.count, options_.bucket_bytes / dtype_bytes(slot.dtype));
}

// Applies all phases, the first phase last, so invalid phases throw now.
void Ways::try_phases(ReducerParameter& own, Slot& slot) {
  const std::vector<RulePhase>& phases = own.choice.phases;
  schedules_ |= !phases.empty();
  for (const RulePhase& phase : phases)
    slot.least_unit = std::max(slot.least_unit, unit_of(*phase.codec, slot.count));
  for (auto phase = phases.rbegin(); phase != phases.rend(); ++phase) {
    set_codec(own, slot, phase->codec);
    own.owes_later |= own.algorithm == Algorithm::kTwoShot;
  }
}

void Ways::set_codec(ReducerParameter& own, Slot& slot, std::shared_ptr<const Codec> codec) const {
  slot.codec = std::move(codec);
  own.algorithm =
      preferred_algorithm(slot, encoding_ranks(parameters_.context(), slot), algorithm_);
  if (!slot.encoded_shards.empty()) own.algorithm = Algorithm::kHierarchical;
  slot.window.reset();
  if (slot.collective == Collective::kReduceScatter && own.algorithm == Algorithm::kOneShot)
    slot.window = slot.output_first;
}

void Ways::set_way(ReducerParameter& own, Slot& slot, const AutoChoice& way) {
  slot.algorithm = way.algorithm;
  slot.chunk_count = way.chunk_count;
  set_codec(own, slot, rules_.codec(way.codec));
}

// Parameters of one rule and dtype share a codec. Each parameter uses the codec's fastest
// algorithm.
void Ways::begin() {
  std::vector<Learner::Group> groups;
  for (std::size_t i = 0; i < parameters_.count(); ++i) {
    ReducerParameter& parameter = parameters_.all[i];
    if (parameter.ways.empty()) continue;
    const std::string name = group_name(parameters_.slots[i], parameter.choice);
    auto found = std::ranges::find(groups, name, &Learner::Group::name);
    if (found == groups.end()) found = groups.insert(groups.end(), new_group(name, parameter.ways));
    parameter.group = static_cast<std::size_t>(found - groups.begin());
    const auto message =
        static_cast<double>(std::max<std::size_t>(1, count_of_message(parameters_.slots[i])));
    const double share = static_cast<double>(parameters_.slots[i].count) / message;
    for (std::size_t way = 0; way < parameter.ways.size(); ++way)
      found->ways[way].predicted += share * parameter.ways[way].seconds;
  }
  if (groups.empty()) return;
  for (Learner::Group& group : groups)
    group.chosen = static_cast<std::size_t>(
        std::ranges::min_element(group.ways, {}, &Learner::Way::predicted) - group.ways.begin());
  learner_ = std::make_unique<Learner>(std::move(groups));
}

std::vector<std::size_t> Ways::take(std::uint32_t step) {
  std::vector<std::size_t> entered;
  for (std::size_t i = 0; i < parameters_.count(); ++i) {
    ReducerParameter& own = parameters_.all[i];
    if (!own.ways.empty())
      set_way(own, parameters_.slots[i], own.ways[learner_->way(own.group)].way);
    if (own.choice.phases.empty() || own.phase(step).codec == parameters_.slots[i].codec) continue;
    set_codec(own, parameters_.slots[i], own.phase(step).codec);
    entered.push_back(i);
  }
  return entered;
}

bool Ways::in_phase(std::uint32_t step) const {
  for (std::size_t i = 0; i < parameters_.count(); ++i)
    if (!parameters_.all[i].choice.phases.empty() &&
        parameters_.all[i].phase(step).codec != parameters_.slots[i].codec)
      return false;
  return true;
}

bool Ways::enters_phase(std::uint32_t step) {
  if (!schedules_ || followed_step_ == step) return false;
  followed_step_ = step;
  if (in_phase(step)) return false;
  if (learner_ != nullptr) learner_->begin_with(learner_->chosen());  // the step time changes
  return true;
}

// A graph repeats a single step.
void Ways::check_capture(std::uint32_t step) const {
  const bool followed = in_phase(step);
  for (const ReducerParameter& one : parameters_.all)
    if (const auto& phases = one.choice.phases;
        !phases.empty() && (!followed || step < phases.back().from_step))
      throw InvalidArgument("\"" + one.name + "\" changes its codec at step " +
                            std::to_string(phases.back().from_step) +
                            ": a step can be captured once one was made after that");
}

bool Ways::may_learn() const {
  return learner_ != nullptr && learner_->has_choice() && parameters_.context().ranks > 1 &&
         options_.learning == Learning::kOn;
}

bool Ways::settled(bool begun) const {
  if (begun || !automatic() || parameters_.context().ranks == 1)
    return !learns() || learner_->settled();
  return options_.learning == Learning::kOff;
}

// The first step learns the order, and its duration is not used.
bool Ways::end_step() {
  const auto began = std::exchange(step_began_, std::nullopt);
  if (!began) return false;
  const auto ended = step_ended_.value_or(Clock::now());
  return learner_->add(std::chrono::duration<double>(ended - *began).count());
}

void Ways::begin_step(std::uint32_t number) {
  learned_step_ = number;
  step_ended_.reset();
  step_began_ = Clock::now();
}

bool Ways::agree(double seconds) {
  const std::vector<std::size_t> before = learner_->ways();
  learner_->agree(seconds);
  return learner_->ways() != before;
}

bool Ways::adopt(std::span<const std::string> codecs) {
  if (learner_ == nullptr) return false;
  std::vector<std::size_t> chosen = learner_->chosen();
  for (std::size_t i = 0; i < parameters_.count(); ++i) {
    const auto& ways = parameters_.all[i].ways;
    const auto found = std::ranges::find_if(
        ways, [&](const AutoPrediction& way) { return way.way.codec == codecs[i]; });
    if (found != ways.end())
      chosen[parameters_.all[i].group] = static_cast<std::size_t>(found - ways.begin());
  }
  if (chosen == learner_->chosen()) return false;
  learner_->begin_with(chosen);
  return true;
}

const std::string& Ways::chosen_codec(std::size_t parameter) const {
  const ReducerParameter& own = parameters_.all[parameter];
  return own.ways[learner_->chosen()[own.group]].way.codec;
}

void Ways::begin_capture() {
  if (!learner_->settled())
    throw InvalidArgument(
        "codec auto still tries how gradients go: make steps until GradientReducer::settled() says "
        "true, then capture, or set ReducerOptions::learning to kOff");
  was_captured_ = true;
}

std::string Ways::explain() const {
  std::string text;
  if (may_learn()) text += learner_->explain();
  if (own_tuner_ != nullptr) text += own_tuner_->explain();
  return text;
}

}  // namespace tersor
