// The GradientReducer's inside. Its parts know nothing of each other's work: the step (what is
// ready, closed, requested, back), who sends (Sender, Driver), where gradients lie (Residence),
// what is given for a step (Gradients), and how parameters go (Ways). This holds them together:
// parameters, residuals, checkpoints, statistics. What the trainer's thread and the driving one
// both touch is guarded by the step's lock.
#pragma once

#include "comm/collectives/hierarchy.h"
#include "comm/collectives/planner.h"
#include "comm/reducer/driver.h"
#include "comm/reducer/gradients.h"
#include "comm/reducer/parameter.h"
#include "comm/reducer/residence.h"
#include "comm/reducer/residuals.h"
#include "comm/reducer/sender.h"
#include "comm/reducer/state.h"
#include "comm/reducer/step.h"
#include "comm/reducer/ways.h"

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
  void check_may_add(const std::string& name) const;
  void check_memory(const std::string& name, Memory memory);
  void shape_shards(const std::string& name, const GradientShape& shape, Slot& slot) const;

  // The trainer's side of a step (steps.cc).
  ReducerHandle ready(std::uint32_t parameter, const std::optional<Gradients::Given>& given,
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
  void load(const ReducerState& state);
  void check_state(const ReducerState& state) const;
  void discard_step();
  void scale_residuals(float factor);
  void sum_over_ranks(std::vector<float>& values);
  Transport& control();

  // Parameters that go other ways than before (learning.cc), with the lock held.
  std::uint32_t training_step() const { return step_.number() + steps_before_; }
  void follow_phases();
  bool settled();
  void learn();
  void agree_on_ways();
  void change_ways();
  void take_ways();
  void hand_over(std::size_t parameter);
  void adopt_ways(const ReducerState& state);
  void note_waited();

  // Statistics (statistics.cc).
  ReducerStatistics total_statistics();
  std::vector<ReducerStatistics> parameter_statistics();
  void reset_statistics();
  std::string explain();
  std::string explain_choice();

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
  void check_ready(std::uint32_t parameter, const std::optional<Gradients::Given>& given) const;
  bool request(const ReducerStep::Order& together);
  ReducerHandle handle_of(std::uint32_t parameter) const;
  bool of_ready() const { return options_.order == SendingOrder::kOfReady; }
  void keep_own(std::uint32_t parameter);
  void bind_residuals();
  void check_capture() const;
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

  const ReducerOptions options_;
  Ways ways_;  ///< before the channel, a collective call: wrong rules are found without it
  Transport& transport_;                ///< the trainer's
  std::unique_ptr<Transport> channel_;  ///< of the driving thread
  std::unique_ptr<Transport>
      control_;  ///< of the trainer's thread: what "auto" agrees on, checkpoints
  Threads threads_;
  std::unique_ptr<Hierarchy> hierarchy_;  ///< null: all ranks exchange with all
  std::vector<Slot> slots_;
  std::size_t taken_in_ = 0;  ///< so many of them are part of steps
  std::vector<ReducerParameter> parameters_;
  std::map<std::string, std::uint32_t, std::less<>> names_;
  Memory memory_ = Memory::kHost;  ///< of the gradients
  Residuals residuals_;
  ExchangeContext context_;
  Gradients gradients_;
  std::shared_ptr<ReducerHandle::Shared> handle_ = std::make_shared<ReducerHandle::Shared>();
  Totals totals_;
  std::uint64_t sent_before_ = 0;  ///< the last reset
  double wire_before_ = 0;

  std::uint32_t steps_before_ = 0;  ///< complete ones of other runs, less those thrown away

  // There once all parameters are known, but for the step.
  ReducerStep step_;
  std::unique_ptr<Residence> residence_;
  std::unique_ptr<Sender> sender_;
  std::unique_ptr<Driver> driver_;
};

}  // namespace tersor
