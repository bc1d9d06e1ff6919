// By which codec and which algorithm each parameter goes: always the same, by a schedule, or as
// "auto" learns while training goes on. Decides, and no more: who holds it waits until nothing is
// under way, and then has residuals and messages follow. All ranks decide alike.
#pragma once

#include "comm/collectives/context.h"
#include "comm/reducer/parameters.h"
#include "comm/reducer/rules.h"
#include "comm/tuning/learner.h"

#include <tersor/auto.h>
#include <tersor/reducer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tersor {

class Ways {
 public:
  /// The parameters outlive it. Throws InvalidArgument for rules that are wrong.
  explicit Ways(Parameters& parameters);

  /// All ranks are on one host: every parameter goes as values do within it.
  void set_single_host(std::shared_ptr<const Codec> codec) {
    single_host_codec_ = std::move(codec);
  }
  /// Where "auto" is asked for, its tuner, which may have to be made: a collective call. Throws
  /// InvalidArgument where an algorithm is asked for beside it.
  void find_tuner(Transport& transport);
  bool automatic() const { return tuner_ != nullptr; }
  /// Of what is encoded.
  Algorithm algorithm() const { return algorithm_; }

  /// How a parameter begins that is about to be added. Throws InvalidArgument where no rule
  /// matches, or what it chooses cannot go.
  void choose(ReducerParameter& own, Slot& slot);
  /// All parameters are known, those added since it was called last among them: learns anew.
  void begin();
  /// Has each go as it is to in a step of training; those whose codec a schedule has changed.
  std::vector<std::size_t> take(std::uint32_t step);

  /// Some parameter has a schedule.
  bool scheduled() const { return schedules_; }
  /// Whether a schedule has something change with this step: true once.
  bool enters_phase(std::uint32_t step);
  /// Throws InvalidArgument where a schedule goes on after this step, which is captured.
  void check_capture(std::uint32_t step) const;

  bool may_learn() const;
  bool learns() const { return may_learn() && !was_captured_; }
  /// `begun`: some step did.
  bool settled(bool begun) const;
  /// Whether step `number` is the first call of a step.
  bool is_new(std::uint32_t number) const { return number != learned_step_; }
  /// The step before is over. True where ranks must agree on the largest `seconds()` of any.
  bool end_step();
  void begin_step(std::uint32_t number);
  /// Whether the time of the step that goes on counts.
  bool looks() const { return learner_->looks(); }
  /// The trainer has waited for all of it.
  void note_waited() { step_ended_ = Clock::now(); }
  double seconds() const { return learner_->seconds(); }
  /// True where parameters go other ways from now on.
  bool agree(double seconds);
  /// Begins with what the run that was saved had chosen for each parameter; true where that
  /// differs.
  bool adopt(std::span<const std::string> codecs);
  const std::string& chosen_codec(std::size_t parameter) const;

  /// A graph goes on as it was captured. Throws InvalidArgument where it is not settled.
  void begin_capture();
  void note_captured() { was_captured_ = true; }
  bool was_captured() const { return was_captured_; }

  /// What "auto" has found out; empty without it.
  std::string explain() const;

 private:
  void choose_way(ReducerParameter& own, Slot& slot);
  void try_phases(ReducerParameter& own, Slot& slot);
  void set_codec(ReducerParameter& own, Slot& slot, std::shared_ptr<const Codec> codec) const;
  void set_way(ReducerParameter& own, Slot& slot, const AutoChoice& way);
  std::size_t count_of_message(const Slot& slot) const;
  bool in_phase(std::uint32_t step) const;

  Parameters& parameters_;
  const ReducerOptions& options_;
  const Algorithm algorithm_;
  Rules rules_;
  std::unique_ptr<Tuner> own_tuner_;
  Tuner* tuner_ = nullptr;
  std::shared_ptr<const Codec> single_host_codec_;

  bool schedules_ = false;
  std::optional<std::uint32_t> followed_step_;  ///< whose phases parameters are in

  std::unique_ptr<Learner> learner_;
  std::uint32_t learned_step_ = 0;  ///< the last that began
  bool was_captured_ = false;
  std::optional<Clock::time_point> step_began_, step_ended_;
};

}  // namespace tersor
