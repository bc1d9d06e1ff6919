// The GradientReducer's inside. Three parts know nothing of each other's work: the step (what is
// ready, closed, requested, back), who sends (Sender, Driver), and where gradients lie (Residence).
// This holds them together: parameters, residuals, checkpoints, statistics. What the trainer's
// thread and the driving one both touch is guarded by the step's lock.
#pragma once

#include "comm/collectives/hierarchy.h"
#include "comm/collectives/planner.h"
#include "comm/reducer/driver.h"
#include "comm/reducer/residence.h"
#include "comm/reducer/residuals.h"
#include "comm/reducer/rules.h"
#include "comm/reducer/sender.h"
#include "comm/reducer/state.h"
#include "comm/reducer/step.h"
#include "comm/tuning/learner.h"

#include <tersor/reducer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tersor {

struct ReducerHandle::Shared {
  GradientReducer::Impl* reducer;
};

struct GradientReducer::Impl {
  Impl(Transport& transport, ReducerOptions wanted);

  // Parameters (reducer.cc).
  void add(std::string name, const GradientShape& shape, ValueSpan gradient);
  std::uint32_t index_of(std::string_view name) const;
  struct Parameter;
  void choose_codec(Parameter& own, Slot& slot);
  std::size_t count_of_message(const Slot& slot) const;
  void choose_way(Parameter& own, Slot& slot);
  void set_way(Parameter& own, Slot& slot, const AutoChoice& way);
  void set_algorithm(Parameter& own, Slot& slot) const;
  void check_may_add(const std::string& name) const;
  void check_memory(const std::string& name, Memory memory);
  void shape_shards(const std::string& name, const GradientShape& shape, Slot& slot) const;

  // The trainer's side of a step (steps.cc).
  struct Given {
    ValueSpan gradient, shard;
  };
  ReducerHandle ready(std::uint32_t parameter, const std::optional<Given>& given,
                      Contribution contribution);
  std::vector<ReducerHandle> ready(std::span<const ReadyGradient> together);
  void flush();
  void wait();
  void wait_for(std::uint32_t parameter, std::uint32_t step);
  bool test(std::uint32_t parameter, std::uint32_t step);
  void progress();
  void finish_steps();

  // Checkpoints (checkpoint.cc).
  ReducerState exact_state();
  ReducerState::Parameter exact_state(std::size_t parameter) const;
  ReducerState portable_state();
  bool tells_memory(std::size_t parameter) const;
  void load(const ReducerState& state);
  void check_state(const ReducerState& state) const;
  void check_model(const ReducerState& state, std::size_t parameter) const;
  void check_codec(const ReducerState::Parameter& found, std::size_t parameter) const;
  void check_counts(const ReducerState& state, std::size_t parameter) const;
  void discard_step();
  void scale_residuals(float factor);
  void sum_over_ranks(std::vector<float>& values);
  Transport& control();

  // Schedules of codecs (phases.cc), with the lock held.
  std::uint32_t training_step() const { return step_.number() + steps_before_; }
  void try_phases(Parameter& own, Slot& slot);
  void set_codec(Parameter& own, Slot& slot, std::shared_ptr<const Codec> codec) const;
  void enter_phase(std::size_t parameter);
  void follow_phases();
  bool in_phase(std::uint32_t step) const;
  void check_capture_of_phase() const;

  // What "auto" learns (learning.cc), with the lock held.
  void make_learner();
  bool may_learn() const;
  bool learns() const;
  bool settled();
  void learn();
  void agree_on_ways();
  void change_ways();
  void take_ways();
  void hand_over(std::size_t parameter);
  void adopt_ways(const ReducerState& state);
  const std::string& chosen_codec(std::size_t parameter) const;
  void begin_capture();
  void note_waited();

  // Statistics (statistics.cc).
  ReducerStatistics total_statistics();
  std::vector<ReducerStatistics> parameter_statistics();
  void reset_statistics();
  std::string explain();
  std::string explain_choice();
  std::string choice_explained() const;  ///< with the lock held

  struct Parameter {
    std::string name;
    RuleChoice choice;
    Algorithm algorithm = Algorithm::kAuto;
    std::size_t count = 0;    ///< without padding
    std::uint32_t order = 0;  ///< of its values
    bool given_anew = false;  ///< its gradient lasts for one step: the slot has it from ready() on
    ValueSpan gradient = {};
    double relative_error = 0;
    std::vector<AutoPrediction> ways = {};  ///< "auto": each codec's quickest; else empty
    std::size_t group = 0;                  ///< of the learner's
    bool owes_later = false;                ///< some phase goes two-shot

    const RulePhase& phase(std::uint32_t step) const;
  };

  /// What is counted since the last reset, as of the last complete step.
  struct Totals {
    std::uint64_t steps = 0;
    std::uint64_t sent_bytes = 0;
    double wire_seconds = 0;
    double exposed_seconds = 0;
    std::uint64_t overflows = 0;
    std::uint64_t discarded = 0;
    std::vector<SlotCounters> slots;
    std::vector<std::uint64_t> slot_steps;
  };

  // Before a step (setup.cc), with the lock held.
  void finalize();
  void begin();
  void take_in_added();
  void place_added();
  void make_sender();
  Driving driving() const;
  std::vector<Bucket> make_buckets(const ReducerStep::Order& order) const;
  Fields fields() const;  ///< what ranks agree on

  // Steps, with the lock held.
  void wait_until(ReducerStep::Lock& lock, const std::function<bool()>& is_done);
  void wait_for_closed(ReducerStep::Lock& lock);
  void begin_ready(ReducerStep::Lock& lock);
  void check_ready(std::uint32_t parameter, const std::optional<Given>& given) const;
  void take_gradient(std::uint32_t parameter, const std::optional<Given>& given,
                     Contribution contribution);
  bool request(const ReducerStep::Order& together);
  ReducerHandle handle_of(std::uint32_t parameter) const;
  bool of_ready() const { return options_.order == SendingOrder::kOfReady; }
  void check_given(std::uint32_t parameter, const Given& given) const;
  void bind_gradient(std::uint32_t parameter, const Given& given);
  void check_values(std::uint32_t parameter, const ValueSpan& values, std::size_t count) const;
  void keep_own(std::uint32_t parameter);
  void forget_gradients();
  void bind_residuals();
  bool contributes(std::uint32_t parameter, Contribution contribution) const;
  void leave_out(std::uint32_t parameter);
  void leave_alone(std::uint32_t parameter);
  void measure_error(std::uint32_t parameter);
  void check_capture() const;
  bool has_gradient(std::size_t parameter) const {
    return slots_[parameter].input.count() == slots_[parameter].count;
  }
  std::string wrongly_missing() const;
  bool mark_missing();
  void fail_missing(const std::string& names);
  void close_step();
  void notice_requests();
  void complete_step();
  void check_requested(std::uint32_t parameter) const;
  void snapshot_totals();
  StreamView stream() const { return residence_ == nullptr ? StreamView{} : residence_->stream(); }

  // The way between ranks (reducer.cc).
  void find_hierarchy();
  bool may_go_two_shot(std::size_t parameter) const;
  StateRanges kept_ranges(std::size_t parameter, int rank) const;
  Owed owed(std::size_t parameter) const;
  std::size_t memory_count(std::size_t parameter, const Codec& codec) const;
  std::size_t memory_count(std::size_t parameter) const {
    return memory_count(parameter, *slots_[parameter].codec);
  }
  std::size_t most_memory(std::size_t parameter) const;

  const ReducerOptions options_;
  Rules rules_;
  std::unique_ptr<Tuner> own_tuner_;
  Tuner* tuner_ = nullptr;              ///< where "auto" is asked for
  Transport& transport_;                ///< the trainer's
  std::unique_ptr<Transport> channel_;  ///< of the driving thread
  std::unique_ptr<Transport>
      control_;  ///< of the trainer's thread: what "auto" agrees on, checkpoints
  Threads threads_;
  Algorithm algorithm_;                             ///< of what is encoded
  std::unique_ptr<Hierarchy> hierarchy_;            ///< null: all ranks exchange with all
  std::shared_ptr<const Codec> single_host_codec_;  ///< of all, where a hierarchy has one host
  std::vector<Slot> slots_;
  std::size_t taken_in_ = 0;  ///< so many of them are part of steps
  std::vector<Parameter> parameters_;
  std::map<std::string, std::uint32_t, std::less<>> names_;
  Memory memory_ = Memory::kHost;  ///< of the gradients
  Residuals residuals_;
  ExchangeContext context_;
  std::shared_ptr<ReducerHandle::Shared> handle_ = std::make_shared<ReducerHandle::Shared>();
  Totals totals_;
  std::uint64_t sent_before_ = 0;  ///< the last reset
  double wire_before_ = 0;
  bool left_out_ = false;      ///< in this step some parameter is inactive
  std::vector<bool> nowhere_;  ///< those that no rank has a gradient of, in this step

  std::uint32_t steps_before_ = 0;  ///< complete ones of other runs, less those thrown away
  bool schedules_ = false;          ///< some parameter has phases
  std::optional<std::uint32_t> followed_step_;  ///< whose phases parameters are in

  std::unique_ptr<Learner> learner_;  ///< where "auto" is asked for, once all parameters are known
  std::uint32_t learned_step_ = 0;    ///< the last that began
  bool was_captured_ = false;         ///< a graph goes on as it was captured
  std::optional<Clock::time_point> step_began_, step_ended_;

  // There once all parameters are known, but for the step.
  ReducerStep step_;
  std::unique_ptr<Residence> residence_;
  std::unique_ptr<Sender> sender_;
  std::unique_ptr<Driver> driver_;
};

}  // namespace tersor
