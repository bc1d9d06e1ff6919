// See trials.h.
#include "comm/tuning/trials.h"

#include "comm/tuning/text.h"

#include <algorithm>
#include <cmath>

namespace tersor {
namespace {

constexpr double kTryingSeconds = 20e-3;  // of each alternative, where that is enough calls
constexpr double kLeastCalls = 2, kMostCalls = 16;

std::string slower(double seconds, double best) {
  return percent_text(seconds / best - 1) + " slower";
}

}  // namespace

Trials::Trials(std::vector<Alternative> alternatives) : alternatives_(std::move(alternatives)) {
  std::stable_sort(
      alternatives_.begin(), alternatives_.end(),
      [](const Alternative& a, const Alternative& b) { return a.predicted < b.predicted; });
  const double best = alternatives_.front().predicted;
  make_shortlist(std::max(best * kWorthTrying, best + kWorthTryingBy));
}

// Nothing to compare: nothing to try.
void Trials::make_shortlist(double limit) {
  shortlist_.clear();
  for (std::size_t i = 0; i < alternatives_.size(); ++i)
    if (i == chosen_ || alternatives_[i].best_known() < limit) shortlist_.push_back(i);
  std::stable_sort(shortlist_.begin(), shortlist_.end(), [this](std::size_t a, std::size_t b) {
    if ((a == chosen_) != (b == chosen_)) return a == chosen_;
    return alternatives_[a].best_known() < alternatives_[b].best_known();
  });
  if (shortlist_.size() > kMostTried) shortlist_.resize(kMostTried);
  tried_ = shortlist_.size() == 1 ? 1 : 0;
  warm_ = false;
}

const Alternative& Trials::current() const {
  return alternatives_[settled() ? chosen_ : shortlist_[tried_]];
}

std::size_t Trials::calls_wanted() const {
  if (settled()) return window_;
  const double calls = kTryingSeconds / std::max(current().predicted, 1e-9);
  return static_cast<std::size_t>(std::clamp(std::ceil(calls), kLeastCalls, kMostCalls));
}

bool Trials::add(double seconds) {
  if (!warm_) {
    warm_ = true;
    return false;
  }
  seconds_.push_back(seconds);
  return seconds_.size() >= calls_wanted();
}

double Trials::median() const {
  std::vector<double> sorted = seconds_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

void Trials::agree(double seconds) {
  seconds_.clear();
  if (settled()) return look_again(seconds);
  alternatives_[shortlist_[tried_]].measured = seconds;
  ++tried_;
  warm_ = false;
  if (settled()) choose_quickest();
}

void Trials::choose_quickest() {
  std::size_t quickest = chosen_;
  for (const std::size_t index : shortlist_)
    if (alternatives_[index].measured < alternatives_[quickest].measured) quickest = index;
  const bool clearly =
      alternatives_[quickest].measured * kClearGain < alternatives_[chosen_].measured;
  if (clearly) chosen_ = quickest;
  if (add_overlooked()) return;
  window_ = clearly ? kFirstWindow : std::min(2 * window_, kLongestWindow);
}

// The model may have promised too much for all that it put first: what it put behind them, and
// still promises less than the chosen one took, deserves its turn.
bool Trials::add_overlooked() {
  const double limit = kOverlooked * alternatives_[chosen_].measured;
  for (std::size_t i = 0; i < alternatives_.size(); ++i)
    if (alternatives_[i].measured <= 0 && alternatives_[i].predicted < limit)
      shortlist_.push_back(i);
  return !settled();
}

// The link or the machine may have changed: where another way now seems clearly quicker, all that
// may be are tried again. Fruitless trials make the next one later.
void Trials::look_again(double seconds) {
  alternatives_[chosen_].measured = seconds;
  const bool challenged = std::any_of(
      alternatives_.begin(), alternatives_.end(),
      [&](const Alternative& other) { return other.best_known() * kClearGain < seconds; });
  if (challenged) make_shortlist(seconds);
}

std::string Trials::reason(std::size_t index) const {
  const Alternative& one = alternatives_[index];
  const Alternative& best = alternatives_[chosen_];
  if (index == chosen_)
    return shortlist_.size() > 1 ? "taken: tried" : "taken: predicted to be clearly the quickest";
  if (one.measured <= 0 || best.measured <= 0)
    return "left: predicted " + slower(one.predicted, best.predicted);
  if (one.measured < best.measured)
    return "left: " + percent_text(1 - one.measured / best.measured) + " quicker is no clear gain";
  return "left: measured " + slower(one.measured, best.measured);
}

}  // namespace tersor
