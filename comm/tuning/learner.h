// Chooses among alternatives for gradients during training. Each alternative is measured for some
// steps. The fastest is used until step times change by a fifth up or down. Among equally fast
// alternatives, the smallest loss wins. A step is a training step (with a group per set of a
// reducer's parameters) or an allreduce call.
//
// Independent of parameters and ranks: tests/comm/learner_test.cc uses this class alone. All ranks
// count the same steps and agree on the times, so all ranks switch in the same step.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace tersor {

class Learner {
 public:
  static constexpr double kTolerance = 1.01;  ///< times the fastest duration
  static constexpr double kDrift = 1.2;       ///< change of a step's duration, up or down
  /// Alternatives slower by this factor after the first, second, … round are dropped.
  static constexpr double kRoundLimits[] = {1.4, 1.1, 1.05};
  static constexpr std::size_t kTimedSteps = 3;  ///< per measurement, after a warm-up step
  /// Maximum pause between measurements, in multiples of the first pause.
  static constexpr std::size_t kMaxPauses = 64;

  /// The differences between training steps and calls.
  struct Terms {
    std::string timed = "steps";         ///< name of the measured unit
    std::string predicted = "messages";  ///< name of the predicted unit
    /// An alternative is not tried if its prediction exceeds this multiple of the fastest duration.
    double max_ratio = 6;
    std::size_t first_pause = 16;  ///< steps between the first two measurements
  };
  struct Candidate {
    std::string name;
    double predicted = 0;  ///< seconds
    double measured = 0;   ///< seconds per step on the slowest rank; 0 if not tried
  };
  struct Group {
    std::string name;
    std::vector<Candidate> candidates;  ///< in order of increasing loss
    std::size_t chosen = 0;             ///< initially the starting choice
  };

  explicit Learner(std::vector<Group> groups) : Learner(std::move(groups), Terms()) {}
  Learner(std::vector<Group> groups, Terms terms);

  /// True if any group has alternatives.
  bool has_choice() const;
  /// The alternative of a group in the next step.
  std::size_t candidate(std::size_t group) const;
  std::vector<std::size_t> candidates() const;
  std::vector<std::size_t> chosen() const;
  bool settled() const { return remaining_.empty(); }
  /// True if the next step's duration counts.
  bool is_measuring() const { return pause_ == 0 && warmed_up_; }

  /// Adds the duration of a step. If the result is true, the ranks must now agree on the maximum of
  /// `seconds()` and call `agree`.
  bool add(double seconds);
  double seconds() const;
  /// Adds the agreed duration. May change the alternatives.
  void agree(double seconds);

  /// Restarts the trials with these alternatives first.
  void begin_with(const std::vector<std::size_t>& chosen);

  /// Returns a line per group and a line per alternative.
  std::string explain() const;

 private:
  void begin_measurement(std::size_t pause);
  void begin_trials();
  void begin_group();
  void end_round();
  void choose();
  void check_drift(double seconds);
  static double fastest(const Group& group);
  static double expected(const Group& group, const Candidate& candidate);
  bool is_too_slow(const Group& group, const Candidate& candidate) const;
  std::string reason(const Group& group, const Candidate& candidate) const;
  Group& current() { return groups_[group_]; }

  Terms terms_;
  std::vector<Group> groups_;
  std::size_t group_ = 0;               ///< index of the group being tried
  std::size_t round_ = 0;               ///< round of the trial
  std::size_t next_ = 0;                ///< index in `remaining_`
  std::vector<std::size_t> remaining_;  ///< alternatives of this round; empty once settled

  std::size_t pause_ = 0;        ///< steps until the next measurement
  bool warmed_up_ = false;       ///< True after the measurement's first step
  std::vector<double> seconds_;  ///< durations of the current measurement
  std::size_t steps_ = 0, settled_at_ = 0;
  double baseline_ = 0;  ///< duration of a settled step; 0 if not measured
  std::size_t next_pause_ = terms_.first_pause;
  std::vector<std::size_t> previous_choice_;  ///< choice before the trials
  std::string drift_text_;                    ///< reason for restarting the trials
};

}  // namespace tersor
