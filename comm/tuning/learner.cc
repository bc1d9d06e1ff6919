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
  return std::ranges::any_of(groups_, [](const Group& group) { return group.ways.size() > 1; });
}

std::size_t Learner::way(std::size_t group) const {
  return !settled() && group == group_ ? trying_[next_] : groups_[group].chosen;
}

std::vector<std::size_t> Learner::ways() const {
  std::vector<std::size_t> all;
  for (std::size_t group = 0; group < groups_.size(); ++group) all.push_back(way(group));
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
    for (Way& way : group.ways) way.measured = 0;
  group_ = 0;
  begin_group();
}

// Starts with the chosen alternative, because the measured time may rule out others.
void Learner::begin_group() {
  while (group_ < groups_.size() && tried().ways.size() < 2) ++group_;
  trying_.clear();
  round_ = next_ = 0;
  if (group_ == groups_.size()) {
    settled_at_ = steps_;
    usual_ = 0;
    return begin_look(0);
  }
  trying_.push_back(tried().chosen);
  for (std::size_t way = 0; way < tried().ways.size(); ++way)
    if (way != tried().chosen) trying_.push_back(way);
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
  double& measured = tried().ways[trying_[next_]].measured;
  measured = measured > 0 ? std::min(measured, seconds) : seconds;
  begin_look(0);
  do {
    if (++next_ == trying_.size()) return end_round();
  } while (hopeless(tried(), tried().ways[trying_[next_]]));
}

// Scales predictions: the chosen alternative's messages took at most the duration of its step.
double Learner::expected(const Group& group, const Way& way) {
  const Way& chosen = group.ways[group.chosen];
  if (chosen.predicted <= chosen.measured) return way.predicted;
  return way.predicted * chosen.measured / chosen.predicted;
}

bool Learner::hopeless(const Group& group, const Way& way) const {
  return way.measured <= 0 && expected(group, way) > terms_.hopeless * quickest(group);
}

double Learner::quickest(const Group& group) {
  double seconds = 0;
  for (const Way& way : group.ways)
    if (way.measured > 0 && (seconds <= 0 || way.measured < seconds)) seconds = way.measured;
  return seconds;
}

// Drops slow alternatives. The others are measured again until a single alternative is left or the
// rest is close enough.
void Learner::end_round() {
  const double limit = kLeft[round_] * quickest(tried());
  std::erase_if(trying_, [&](std::size_t way) {
    const double measured = tried().ways[way].measured;
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
  const auto found = std::ranges::find_if(
      tried().ways, [&](const Way& way) { return way.measured > 0 && way.measured <= limit; });
  tried().chosen = static_cast<std::size_t>(found - tried().ways.begin());
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

std::string Learner::reason(const Group& group, const Way& way) const {
  if (group.ways.size() == 1) return "there is no other";
  if (way.measured <= 0 && !settled()) return "not tried yet";
  if (way.measured <= 0) return "not tried: predicted to take several times as long";
  const std::string steps = terms_.timed + " of " + seconds_text(way.measured);
  if (!settled()) return steps;
  const double more = way.measured / quickest(group) - 1;
  if (&way == &group.ways[group.chosen])
    return steps + (more > 0 ? ", as quick as any, and loses less" : ", the quickest");
  return steps + (more > kAsQuick - 1 ? ", " + percent_text(more) + " slower" : ", no quicker");
}

std::string Learner::explain() const {
  std::string text;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_[i];
    text += "auto, " + group.name + ": " + group.ways[way(i)].name + ", " +
            (settled() ? "settled after " + std::to_string(settled_at_)
                       : "still trying after " + std::to_string(steps_)) +
            " " + terms_.timed + drift_ + "\n";
    for (const Way& way : group.ways)
      text += "  " + way.name + ": " + terms_.predicted + " of " + seconds_text(way.predicted) +
              " predicted; " + reason(group, way) + "\n";
  }
  return text;
}

}  // namespace tersor
