#include "comm/tuning/learner.h"

#include "comm/tuning/text.h"

#include <algorithm>
#include <iterator>

namespace tersor {
namespace {

constexpr double kTick = 1e-9;  // seconds; 0 means not measured

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
  return !settled() && group == group_ ? trying_[next_] : groups_[group].chosen;
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

void Learner::begin_look(std::size_t pause) {
  pause_ = pause;
  warm_ = false;
  seconds_.clear();
}

void Learner::begin_trials() {
  before_ = chosen();
  for (Group& group : groups_)
    for (Candidate& candidate : group.candidates) candidate.measured = 0;
  group_ = 0;
  begin_group();
}

// Starts with the chosen alternative, because the measured time may rule out others.
void Learner::begin_group() {
  while (group_ < groups_.size() && tried().candidates.size() < 2) ++group_;
  trying_.clear();
  round_ = next_ = 0;
  if (group_ == groups_.size()) {
    settled_at_ = steps_;
    usual_ = 0;
    return begin_look(0);
  }
  trying_.push_back(tried().chosen);
  for (std::size_t candidate = 0; candidate < tried().candidates.size(); ++candidate)
    if (candidate != tried().chosen) trying_.push_back(candidate);
  begin_look(0);
}

bool Learner::add(double seconds) {
  ++steps_;
  if (pause_ > 0) {
    --pause_;
    return false;
  }
  if (!warm_) {
    warm_ = true;
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
  seconds = std::max(seconds, kTick);
  if (settled()) return watch(seconds);
  double& measured = tried().candidates[trying_[next_]].measured;
  measured = measured > 0 ? std::min(measured, seconds) : seconds;
  begin_look(0);
  do {
    if (++next_ == trying_.size()) return end_round();
  } while (hopeless(tried(), tried().candidates[trying_[next_]]));
}

// Scales predictions: the chosen alternative's messages took at most the duration of its step.
double Learner::expected(const Group& group, const Candidate& candidate) {
  const Candidate& chosen = group.candidates[group.chosen];
  if (chosen.predicted <= chosen.measured) return candidate.predicted;
  return candidate.predicted * chosen.measured / chosen.predicted;
}

bool Learner::hopeless(const Group& group, const Candidate& candidate) const {
  return candidate.measured <= 0 && expected(group, candidate) > terms_.hopeless * quickest(group);
}

double Learner::quickest(const Group& group) {
  double seconds = 0;
  for (const Candidate& candidate : group.candidates)
    if (candidate.measured > 0 && (seconds <= 0 || candidate.measured < seconds))
      seconds = candidate.measured;
  return seconds;
}

// Drops slow alternatives. The others are measured again until a single alternative is left or the
// rest is close enough.
void Learner::end_round() {
  const double limit = kLeft[round_] * quickest(tried());
  std::erase_if(trying_, [&](std::size_t candidate) {
    const double measured = tried().candidates[candidate].measured;
    return measured <= 0 || measured > limit;
  });
  next_ = 0;
  if (++round_ < std::size(kLeft) && trying_.size() > 1) return;
  choose();
  ++group_;
  begin_group();
}

void Learner::choose() {
  const double limit = kAsQuick * quickest(tried());
  const auto found = std::ranges::find_if(tried().candidates, [&](const Candidate& candidate) {
    return candidate.measured > 0 && candidate.measured <= limit;
  });
  tried().chosen = static_cast<std::size_t>(found - tried().candidates.begin());
}

// Tries all alternatives again, because the link, the machine or the model's input may have
// changed. While measurements find no change, the pauses grow.
void Learner::watch(double seconds) {
  if (usual_ > 0 && (seconds > kDrift * usual_ || seconds * kDrift < usual_)) {
    drift_ = "; tried again as " + terms_.timed + " of " + seconds_text(usual_) + " took " +
             seconds_text(seconds);
    return begin_trials();
  }
  const bool changed = usual_ <= 0 && before_ != chosen();
  next_pause_ =
      changed ? terms_.first_pause : std::min(2 * next_pause_, kLongestPause * terms_.first_pause);
  if (usual_ <= 0) usual_ = seconds;
  begin_look(next_pause_);
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
  const double more = candidate.measured / quickest(group) - 1;
  if (&candidate == &group.candidates[group.chosen])
    return steps + (more > 0 ? ", as quick as any, and loses less" : ", the quickest");
  return steps + (more > kAsQuick - 1 ? ", " + percent_text(more) + " slower" : ", no quicker");
}

std::string Learner::explain() const {
  std::string text;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_[i];
    text += "auto, " + group.name + ": " + group.candidates[candidate(i)].name + ", " +
            (settled() ? "settled after " + std::to_string(settled_at_)
                       : "still trying after " + std::to_string(steps_)) +
            " " + terms_.timed + drift_ + "\n";
    for (const Candidate& candidate : group.candidates)
      text += "  " + candidate.name + ": " + terms_.predicted + " of " +
              seconds_text(candidate.predicted) + " predicted; " + reason(group, candidate) + "\n";
  }
  return text;
}

}  // namespace tersor
