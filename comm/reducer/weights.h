// What the ranks' gradients of a step count for, where they are means over unequal numbers of
// samples (ReducerOptions::weights). With the step's lock held.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace tersor {

class StepWeights {
 public:
  /// Throws InvalidArgument, and changes nothing, where the step's samples are told already, or are
  /// no number of samples.
  void tell(double samples);
  bool told() const { return state_ != State::kNone; }
  /// What is to be sent to the other ranks: once.
  std::optional<double> take_wanted();
  /// What each rank told.
  void learn(int rank, std::span<const double> samples);
  bool known() const { return state_ == State::kKnown; }
  /// Throws InvalidArgument where there is no mean over those samples: on all ranks, which may tell
  /// others then.
  void check();
  /// Of gradients whose mean over ranks is then the mean over samples. 1 where none were told.
  float factor() const { return factor_; }
  /// The next step's are to be told.
  void end() { *this = {}; }

 private:
  enum class State : std::uint8_t { kNone, kTold, kSent, kKnown };
  State state_ = State::kNone;
  double samples_ = 0;  ///< of this rank; once they are known, of all
  float factor_ = 1;
};

}  // namespace tersor
