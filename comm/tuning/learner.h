// Which way gradients go, found out while they do: each is tried for some steps, and the quickest
// stays until steps take a fifth more or less than they did. Of those that are as quick the one
// stays that loses least. A step is one of training, for each group of a reducer's parameters; or
// one call of an allreduce.
//
// Knows neither parameters nor ranks: tests/comm/learner_test.cc drives it alone. Steps are counted
// and times agreed on by all ranks, so that all ranks change in the same step.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace tersor {

class Learner {
 public:
  static constexpr double kAsQuick = 1.01;  ///< of the quickest one's time
  static constexpr double kDrift = 1.2;     ///< of a step's time, up or down
  /// What is so much slower after the first, second, … round of trying is left.
  static constexpr double kLeft[] = {1.4, 1.1, 1.05};
  static constexpr std::size_t kTimedSteps = 3;     ///< of a look, after one to warm up
  static constexpr std::size_t kLongestPause = 64;  ///< between two looks, times the first

  /// What differs between steps of training and calls.
  struct Terms {
    std::string timed = "steps";         ///< what takes a time, and
    std::string predicted = "messages";  ///< of what one is predicted
    /// A way is not tried where its predicted time is more than this many times the quickest's.
    double hopeless = 6;
    std::size_t first_pause = 16;  ///< steps between the first two looks
  };
  struct Way {
    std::string name;
    double predicted = 0;  ///< seconds
    double measured = 0;   ///< of a step, the slowest rank's; 0: not tried
  };
  struct Group {
    std::string name;
    std::vector<Way> ways;   ///< what loses least first
    std::size_t chosen = 0;  ///< and what it begins with
  };

  explicit Learner(std::vector<Group> groups) : Learner(std::move(groups), Terms()) {}
  Learner(std::vector<Group> groups, Terms terms);

  /// Whether any group has something to choose.
  bool has_choice() const;
  /// How a group goes in the step that begins.
  std::size_t way(std::size_t group) const;
  std::vector<std::size_t> ways() const;
  std::vector<std::size_t> chosen() const;
  bool settled() const { return trying_.empty(); }
  /// Whether the time of the step that begins counts.
  bool looks() const { return pause_ == 0 && warm_; }

  /// A step took so long. True where the ranks must now agree on the largest `seconds()` of any,
  /// and call `agree`.
  bool add(double seconds);
  double seconds() const;
  /// Ways may be others from now on.
  void agree(double seconds);

  /// Tries anew, and these first.
  void begin_with(const std::vector<std::size_t>& chosen);

  /// A line a group, and one for each of its ways.
  std::string explain() const;

 private:
  void begin_look(std::size_t pause);
  void begin_trials();
  void begin_group();
  void end_round();
  void choose();
  void watch(double seconds);
  static double quickest(const Group& group);
  static double expected(const Group& group, const Way& way);
  bool hopeless(const Group& group, const Way& way) const;
  std::string reason(const Group& group, const Way& way) const;
  Group& tried() { return groups_[group_]; }

  Terms terms_;
  std::vector<Group> groups_;
  std::size_t group_ = 0;            ///< that is tried
  std::size_t round_ = 0;            ///< of trying it
  std::size_t next_ = 0;             ///< in `trying_`
  std::vector<std::size_t> trying_;  ///< ways of this round; empty: settled

  std::size_t pause_ = 0;        ///< steps until the next look
  bool warm_ = false;            ///< the look's first step is over
  std::vector<double> seconds_;  ///< of the look under way
  std::size_t steps_ = 0, settled_at_ = 0;
  double usual_ = 0;  ///< a settled step's seconds; 0: not looked at yet
  std::size_t next_pause_ = terms_.first_pause;
  std::vector<std::size_t> before_;  ///< what was chosen when the trials began
  std::string drift_;                ///< why they began anew
};

}  // namespace tersor
