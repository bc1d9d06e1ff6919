// Which of several ways one gradient goes: the model's best and what it predicts to be about as
// quick are tried, then the quickest stays until another is clearly quicker.
//
// Calls are counted and times agreed on by all ranks, so that all ranks change at the same call.
#pragma once

#include <tersor/auto.h>

#include <cstddef>
#include <string>
#include <vector>

namespace tersor {

/// One way that a gradient may go.
struct Alternative {
  AutoChoice choice;
  double predicted = 0;  ///< seconds
  double measured = 0;   ///< of the slowest rank; 0: not tried yet

  double best_known() const { return measured > 0 ? measured : predicted; }
};

class Trials {
 public:
  static constexpr double kClearGain = 1.05;       ///< what is less changes nobody's mind
  static constexpr double kWorthTrying = 1.3;      ///< of the best: the model may be that wrong
  static constexpr double kWorthTryingBy = 30e-6;  ///< seconds
  /// Of the chosen one's time: what was predicted to take less is tried too.
  static constexpr double kOverlooked = 1.1;
  static constexpr std::size_t kMostTried = 4;
  static constexpr std::size_t kFirstWindow = 64;  ///< calls between two looks at the time
  static constexpr std::size_t kLongestWindow = 4096;

  /// At least one alternative.
  explicit Trials(std::vector<Alternative> alternatives);

  /// What the next call should do.
  const Alternative& current() const;
  bool settled() const { return tried_ == shortlist_.size(); }

  /// Takes a call's time. True where the ranks must now agree on `median()`, and call `agree`.
  bool add(double seconds);
  double median() const;
  void agree(double seconds);

  /// The quickest first.
  const std::vector<Alternative>& alternatives() const { return alternatives_; }
  std::size_t chosen() const { return chosen_; }
  /// Why an alternative was taken or left.
  std::string reason(std::size_t index) const;

 private:
  void make_shortlist(double limit);
  std::size_t calls_wanted() const;
  void choose_quickest();
  bool add_overlooked();
  void look_again(double seconds);

  std::vector<Alternative> alternatives_;
  std::size_t chosen_ = 0;
  std::vector<std::size_t> shortlist_;  ///< what is tried, in this order
  std::size_t tried_ = 0;               ///< of these
  bool warm_ = false;  ///< the first call of each one prepares buffers: its time is not counted
  std::vector<double> seconds_;
  std::size_t window_ = kFirstWindow;
};

}  // namespace tersor
