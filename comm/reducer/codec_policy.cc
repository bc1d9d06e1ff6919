#include "comm/reducer/codec_policy.h"

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
bool needs_tuner(const ReducerOptions& options) {
  bool needed = options.rules.empty() && options.codec == kAutoCodec;
  for (const ReducerRule& rule : options.rules) needed |= rule.codec == kAutoCodec;
  if (needed && options.algorithm != Algorithm::kAuto)
    throw InvalidArgumentError("codec auto chooses the algorithm: leave algorithm at auto, not " +
                               std::string(algorithm_name(options.algorithm)));
  return needed;
}

std::string group_name(const ExchangeParameter& param, const RuleChoice& choice) {
  const bool scatters = param.collective == Collective::kReduceScatter;
  return choice.reason_text() + ", " + std::string(dtype_name(param.dtype)) +
         (scatters ? " shards" : "");
}

/// Uses the predictions of the group's first parameter.
Learner::Group new_group(std::string name, const std::vector<AutoPrediction>& predictions) {
  Learner::Group group{.name = std::move(name), .candidates = {}};
  for (const AutoPrediction& candidate : predictions)
    group.candidates.push_back({.name = candidate.choice.codec});
  return group;
}

}  // namespace

CodecPolicy::CodecPolicy(Parameters& parameters)
    : parameters_(parameters),
      options_(parameters.options()),
      algorithm_(options_.algorithm == Algorithm::kHierarchical ? Algorithm::kAuto
                                                                : options_.algorithm),
      rules_(options_) {}

void CodecPolicy::find_tuner(Transport& transport) {
  if (!needs_tuner(options_)) return;
  if (options_.tuner == nullptr)
    own_tuner_ =
        std::make_unique<Tuner>(transport, AutoOptions{.codecs = options_.auto_codecs,
                                                       .link = options_.auto_link,
                                                       .threads = options_.threads,
                                                       .memory = options_.memory,
                                                       .error_growth = options_.error_growth,
                                                       .timeout = options_.timeout});
  tuner_ = options_.tuner != nullptr ? options_.tuner : own_tuner_.get();
}

// Applies the rules to the parameter without padding. A tuner chooses for "auto".
void CodecPolicy::choose(ReducerParameter& own, ExchangeParameter& param) {
  own.choice = rules_.choose({own.name, own.count, param.rows, param.columns, param.dtype});
  if (single_host_codec_ != nullptr)
    own.choice = {single_host_codec_, RuleChoice::Reason::kOneHost};
  if (own.choice.automatic()) return choose_automatically(own, param);
  set_codec(own, param, own.choice.codec);
  validate_phases(own, param);
}

void CodecPolicy::choose_automatically(ReducerParameter& own, ExchangeParameter& param) {
  check_tuner_memory(*tuner_, parameters_.memory());
  own.predictions = tuner_->predict_each(param.dtype, count_of_message(param), param.collective,
                                         parameters_.context().ranks.grid.digits());
  for (const AutoPrediction& prediction : own.predictions)
    param.min_unit =
        std::max(param.min_unit, unit_of(*rules_.codec(prediction.choice.codec), param.count));
  set_choice(own, param,
             std::ranges::min_element(own.predictions, {}, &AutoPrediction::seconds)->choice);
}

// A parameter in a shared message is predicted with the size of the whole message, because the
// parameter adds bytes but no latency.
std::size_t CodecPolicy::count_of_message(const ExchangeParameter& param) const {
  return std::max(param.count, options_.bucket_bytes / dtype_bytes(param.dtype));
}

// Applies all phases, the first phase last, so invalid phases throw now.
void CodecPolicy::validate_phases(ReducerParameter& own, ExchangeParameter& param) {
  const std::vector<RulePhase>& phases = own.choice.phases;
  schedules_ |= !phases.empty();
  for (const RulePhase& phase : phases)
    param.min_unit = std::max(param.min_unit, unit_of(*phase.codec, param.count));
  for (auto phase = phases.rbegin(); phase != phases.rend(); ++phase) {
    set_codec(own, param, phase->codec);
    own.has_two_shot_phase |= own.algorithm == Algorithm::kTwoShot;
  }
}

void CodecPolicy::set_codec(ReducerParameter& own, ExchangeParameter& param,
                            std::shared_ptr<const Codec> codec) const {
  param.codec = std::move(codec);
  own.algorithm =
      preferred_algorithm(param, encoding_ranks(parameters_.context().ranks, param), algorithm_);
  if (param.collective == Collective::kReduceScatter &&
      hierarchy_of(parameters_.context().ranks, param) != nullptr)
    own.algorithm = Algorithm::kHierarchical;
}

void CodecPolicy::set_choice(ReducerParameter& own, ExchangeParameter& param,
                             const AutoChoice& choice) {
  param.algorithm = choice.algorithm;
  param.chunk_count = choice.chunk_count;
  set_codec(own, param, rules_.codec(choice.codec));
}

// Parameters of one rule and dtype share a codec. Each parameter uses the codec's fastest
// algorithm.
void CodecPolicy::begin() {
  std::vector<Learner::Group> groups;
  for (std::size_t i = 0; i < parameters_.count(); ++i) {
    ReducerParameter& parameter = parameters_.all[i];
    if (parameter.predictions.empty()) continue;
    const std::string name = group_name(parameters_.params[i], parameter.choice);
    auto found = std::ranges::find(groups, name, &Learner::Group::name);
    if (found == groups.end())
      found = groups.insert(groups.end(), new_group(name, parameter.predictions));
    parameter.group = static_cast<std::size_t>(found - groups.begin());
    const auto message =
        static_cast<double>(std::max<std::size_t>(1, count_of_message(parameters_.params[i])));
    const double share = static_cast<double>(parameters_.params[i].count) / message;
    for (std::size_t candidate = 0; candidate < parameter.predictions.size(); ++candidate)
      found->candidates[candidate].predicted += share * parameter.predictions[candidate].seconds;
  }
  if (groups.empty()) return;
  for (Learner::Group& group : groups)
    group.chosen = static_cast<std::size_t>(
        std::ranges::min_element(group.candidates, {}, &Learner::Candidate::predicted) -
        group.candidates.begin());
  learner_ = std::make_unique<Learner>(std::move(groups));
}

std::vector<std::size_t> CodecPolicy::apply(std::uint32_t step) {
  std::vector<std::size_t> entered;
  for (std::size_t i = 0; i < parameters_.count(); ++i) {
    ReducerParameter& own = parameters_.all[i];
    if (!own.predictions.empty())
      set_choice(own, parameters_.params[i],
                 own.predictions[learner_->candidate(own.group)].choice);
    if (own.choice.phases.empty() || own.phase(step).codec == parameters_.params[i].codec) continue;
    set_codec(own, parameters_.params[i], own.phase(step).codec);
    entered.push_back(i);
  }
  return entered;
}

bool CodecPolicy::in_phase(std::uint32_t step) const {
  for (std::size_t i = 0; i < parameters_.count(); ++i)
    if (!parameters_.all[i].choice.phases.empty() &&
        parameters_.all[i].phase(step).codec != parameters_.params[i].codec)
      return false;
  return true;
}

bool CodecPolicy::enters_phase(std::uint32_t step) {
  if (!schedules_ || applied_step_ == step) return false;
  applied_step_ = step;
  if (in_phase(step)) return false;
  if (learner_ != nullptr) learner_->begin_with(learner_->chosen());  // the step time changes
  return true;
}

// A graph repeats a single step.
void CodecPolicy::check_capture(std::uint32_t step) const {
  const bool followed = in_phase(step);
  for (const ReducerParameter& one : parameters_.all)
    if (const auto& phases = one.choice.phases;
        !phases.empty() && (!followed || step < phases.back().from_step))
      throw InvalidArgumentError("\"" + one.name + "\" changes its codec at step " +
                                 std::to_string(phases.back().from_step) +
                                 ": run a step with that codec before the capture");
}

bool CodecPolicy::may_learn() const {
  return learner_ != nullptr && learner_->has_choice() && parameters_.context().ranks.count > 1 &&
         options_.auto_learning == AutoLearning::kOn;
}

bool CodecPolicy::settled(bool begun) const {
  if (begun || !automatic() || parameters_.context().ranks.count == 1)
    return !learns() || learner_->settled();
  return options_.auto_learning == AutoLearning::kOff;
}

// The first step learns the order, and its duration is not used.
bool CodecPolicy::end_step() {
  const auto began = std::exchange(step_began_, std::nullopt);
  if (!began) return false;
  const auto ended = step_ended_.value_or(Clock::now());
  return learner_->add(std::chrono::duration<double>(ended - *began).count());
}

void CodecPolicy::begin_step(std::uint32_t number) {
  begun_step_ = number;
  step_ended_.reset();
  step_began_ = Clock::now();
}

bool CodecPolicy::agree(double seconds) {
  const std::vector<std::size_t> before = learner_->candidates();
  learner_->agree(seconds);
  return learner_->candidates() != before;
}

bool CodecPolicy::adopt(std::span<const std::string> codecs) {
  if (learner_ == nullptr) return false;
  std::vector<std::size_t> chosen = learner_->chosen();
  for (std::size_t i = 0; i < parameters_.count(); ++i) {
    const auto& predictions = parameters_.all[i].predictions;
    const auto found = std::ranges::find_if(predictions, [&](const AutoPrediction& candidate) {
      return candidate.choice.codec == codecs[i];
    });
    if (found != predictions.end())
      chosen[parameters_.all[i].group] = static_cast<std::size_t>(found - predictions.begin());
  }
  if (chosen == learner_->chosen()) return false;
  learner_->begin_with(chosen);
  return true;
}

const std::string& CodecPolicy::chosen_codec(std::size_t parameter) const {
  const ReducerParameter& own = parameters_.all[parameter];
  return own.predictions[learner_->chosen()[own.group]].choice.codec;
}

void CodecPolicy::begin_capture() {
  if (!learner_->settled())
    throw InvalidArgumentError(
        "codec auto still measures codecs: run steps until settled() of the reducer returns "
        "true, then capture, or turn auto_learning off");
  was_captured_ = true;
}

std::string CodecPolicy::explain() const {
  std::string text;
  if (may_learn()) text += learner_->explain();
  if (own_tuner_ != nullptr) text += own_tuner_->explain();
  return text;
}

}  // namespace tersor
