#include "comm/tuning/learner.h"

#include "comm/tuning/text.h"

#include <algorithm>
#include <iterator>

namespace tersor {
namespace {

constexpr double kMinDuration = 1e-9;  // seconds; 0 means not measured

}  // namespace

Learner::Learner(std::vector<Group> groups, Terms terms)
    : terms_(std::move(terms)), groups_(std::move(groups)) {
  begin_trials();
}

bool Learner::has_choice() const {
  return std::ranges::any_of(groups_,
                             [](const Group& group) { return group.candidates.size() > 1; });
}

std::size_t Learner::candidate(std::size_t group) const {
  return !settled() && group == group_ ? remaining_[next_] : groups_[group].chosen;
}

std::vector<std::size_t> Learner::candidates() const {
  std::vector<std::size_t> all;
  for (std::size_t group = 0; group < groups_.size(); ++group) all.push_back(candidate(group));
  return all;
}

std::vector<std::size_t> Learner::chosen() const {
  std::vector<std::size_t> all;
  for (const Group& group : groups_) all.push_back(group.chosen);
  return all;
}

void Learner::begin_measurement(std::size_t pause) {
  pause_ = pause;
  warmed_up_ = false;
  seconds_.clear();
}

void Learner::begin_trials() {
  previous_choice_ = chosen();
  for (Group& group : groups_)
    for (Candidate& candidate : group.candidates) candidate.measured = 0;
  group_ = 0;
  begin_group();
}

// Starts with the chosen alternative, because the measured time may rule out others.
void Learner::begin_group() {
  while (group_ < groups_.size() && current().candidates.size() < 2) ++group_;
  remaining_.clear();
  round_ = next_ = 0;
  if (group_ == groups_.size()) {
    settled_at_ = steps_;
    baseline_ = 0;
    return begin_measurement(0);
  }
  remaining_.push_back(current().chosen);
  for (std::size_t candidate = 0; candidate < current().candidates.size(); ++candidate)
    if (candidate != current().chosen) remaining_.push_back(candidate);
  begin_measurement(0);
}

bool Learner::add(double seconds) {
  ++steps_;
  if (pause_ > 0) {
    --pause_;
    return false;
  }
  if (!warmed_up_) {
    warmed_up_ = true;
    return false;
  }
  seconds_.push_back(seconds);
  return seconds_.size() == kTimedSteps;
}

double Learner::seconds() const {
  std::vector<double> sorted = seconds_;
  std::ranges::sort(sorted);
  return sorted[(sorted.size() - 1) / 2];
}

void Learner::agree(double seconds) {
  seconds = std::max(seconds, kMinDuration);
  if (settled()) return check_drift(seconds);
  double& measured = current().candidates[remaining_[next_]].measured;
  measured = measured > 0 ? std::min(measured, seconds) : seconds;
  begin_measurement(0);
  do {
    if (++next_ == remaining_.size()) return end_round();
  } while (is_too_slow(current(), current().candidates[remaining_[next_]]));
}

// Scales predictions: the chosen alternative's messages took at most the duration of its step.
double Learner::expected(const Group& group, const Candidate& candidate) {
  const Candidate& chosen = group.candidates[group.chosen];
  if (chosen.predicted <= chosen.measured) return candidate.predicted;
  return candidate.predicted * chosen.measured / chosen.predicted;
}

bool Learner::is_too_slow(const Group& group, const Candidate& candidate) const {
  return candidate.measured <= 0 && expected(group, candidate) > terms_.max_ratio * fastest(group);
}

double Learner::fastest(const Group& group) {
  double seconds = 0;
  for (const Candidate& candidate : group.candidates)
    if (candidate.measured > 0 && (seconds <= 0 || candidate.measured < seconds))
      seconds = candidate.measured;
  return seconds;
}

// Drops slow alternatives. The others are measured again until a single alternative is left or the
// rest is close enough.
void Learner::end_round() {
  const double limit = kRoundLimits[round_] * fastest(current());
  std::erase_if(remaining_, [&](std::size_t candidate) {
    const double measured = current().candidates[candidate].measured;
    return measured <= 0 || measured > limit;
  });
  next_ = 0;
  if (++round_ < std::size(kRoundLimits) && remaining_.size() > 1) return;
  choose();
  ++group_;
  begin_group();
}

void Learner::choose() {
  const double limit = kTolerance * fastest(current());
  const auto found = std::ranges::find_if(current().candidates, [&](const Candidate& candidate) {
    return candidate.measured > 0 && candidate.measured <= limit;
  });
  current().chosen = static_cast<std::size_t>(found - current().candidates.begin());
}

// Tries all alternatives again, because the link, the machine or the model's input may have
// changed. While measurements find no change, the pauses grow.
void Learner::check_drift(double seconds) {
  if (baseline_ > 0 && (seconds > kDrift * baseline_ || seconds * kDrift < baseline_)) {
    drift_text_ = "; tried again as " + terms_.timed + " of " + seconds_text(baseline_) + " took " +
                  seconds_text(seconds);
    return begin_trials();
  }
  const bool changed = baseline_ <= 0 && previous_choice_ != chosen();
  next_pause_ =
      changed ? terms_.first_pause : std::min(2 * next_pause_, kMaxPauses * terms_.first_pause);
  if (baseline_ <= 0) baseline_ = seconds;
  begin_measurement(next_pause_);
}

void Learner::begin_with(const std::vector<std::size_t>& chosen) {
  for (std::size_t i = 0; i < groups_.size(); ++i) groups_[i].chosen = chosen[i];
  begin_trials();
}

std::string Learner::reason(const Group& group, const Candidate& candidate) const {
  if (group.candidates.size() == 1) return "the only candidate";
  if (candidate.measured <= 0 && !settled()) return "not tried yet";
  if (candidate.measured <= 0) return "not tried: predicted to take several times as long";
  const std::string steps = terms_.timed + " of " + seconds_text(candidate.measured);
  if (!settled()) return steps;
  const double more = candidate.measured / fastest(group) - 1;
  if (&candidate == &group.candidates[group.chosen])
    return steps + (more > 0 ? ", as quick as any, and loses less" : ", the quickest");
  return steps + (more > kTolerance - 1 ? ", " + percent_text(more) + " slower" : ", no quicker");
}

std::string Learner::explain() const {
  std::string text;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_[i];
    text += "auto, " + group.name + ": " + group.candidates[candidate(i)].name + ", " +
            (settled() ? "settled after " + std::to_string(settled_at_)
                       : "still trying after " + std::to_string(steps_)) +
            " " + terms_.timed + drift_text_ + "\n";
    for (const Candidate& candidate : group.candidates)
      text += "  " + candidate.name + ": " + terms_.predicted + " of " +
              seconds_text(candidate.predicted) + " predicted; " + reason(group, candidate) + "\n";
  }
  return text;
}

}  // namespace tersor
