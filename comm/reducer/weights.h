// The sample weights of the ranks' gradients in a step, for means over unequal numbers of samples
// (ReducerOptions::weighted). Call with the step's lock held.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace tersor {

class StepWeights {
 public:
  /// Sets this rank's number of samples. Throws InvalidArgumentError for an invalid number and for
  /// a second call in a step. Changes nothing then.
  void set(double samples);
  bool is_set() const { return state_ != State::kNone; }
  /// Returns once the number to send to the other ranks.
  std::optional<double> take_unsent();
  /// `samples`: the number of samples of each rank.
  void set_samples(int rank, std::span<const double> samples);
  bool known() const { return state_ == State::kKnown; }
  /// Throws InvalidArgumentError on all ranks if the samples have no mean. Ranks may then set other
  /// numbers.
  void check();
  /// The factor for this rank's gradients, after which the mean over ranks is the mean over
  /// samples. 1 without weights.
  float factor() const { return factor_; }
  /// Ends the step; the next step needs new weights.
  void end() { *this = {}; }

 private:
  enum class State : std::uint8_t { kNone, kSet, kSent, kKnown };
  State state_ = State::kNone;
  double samples_ = 0;  ///< of this rank; of all ranks once known
  float factor_ = 1;
};

}  // namespace tersor
