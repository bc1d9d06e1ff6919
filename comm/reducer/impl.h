// The GradientReducer's inside. Its parts know nothing of each other's work: the step (what is
// ready, closed, requested, back), who sends (Sender, Driver), where gradients lie (Residence),
// what is reduced (Parameters, with their residuals), what is given for a step (Gradients), how
// parameters go (Ways), what was counted (Totals). This holds them together. What the trainer's
// thread and the driving one both touch is guarded by the step's lock: a LockedStep holds it.
#pragma once

#include "comm/collectives/hierarchy.h"
#include "comm/reducer/driver.h"
#include "comm/reducer/gradients.h"
#include "comm/reducer/loading.h"
#include "comm/reducer/parameters.h"
#include "comm/reducer/residence.h"
#include "comm/reducer/sender.h"
#include "comm/reducer/state.h"
#include "comm/reducer/step.h"
#include "comm/reducer/survivors.h"
#include "comm/reducer/totals.h"
#include "comm/reducer/trace.h"
#include "comm/reducer/ways.h"
#include "comm/reducer/weights.h"

#include <tersor/reducer.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tersor {

struct ReducerHandle::Shared {
  GradientReducer::Impl* reducer;
};

struct GradientReducer::Impl {
  Impl(Transport& transport, ReducerOptions wanted);

  void add(std::string name, const GradientShape& shape, ValueSpan gradient);

  /// One parameter of a call.
  struct Ready {
    std::uint32_t parameter;
    std::optional<Gradients::Given> given;
    Contribution contribution;
  };

  // The trainer's side of a step (steps.cc).
  ReducerHandle ready(Ready one);
  /// As many handles; nothing is taken where one of them is a mistake.
  void ready(std::span<const Ready> together, std::span<ReducerHandle> handles);
  void flush();
  void wait();
  void wait_for(std::uint32_t parameter, std::uint32_t number);
  bool test(std::uint32_t parameter, std::uint32_t number);
  void progress();
  void finish_steps();
  /// The same, with the step locked.
  LockedStep between_steps() {
    finish_steps();
    return step_.lock();
  }
  /// The same for who changes nothing: after an error, as that left the step.
  LockedStep stopped();

  // Checkpoints (between_steps.cc); loss scales and transactions (transactions.cc).
  ReducerState exact_state();
  void load(const ReducerState& state);
  void scale_residuals(float factor, std::span<const std::size_t> parameters);
  void check_transactions(std::string_view call) const;
  bool discard(std::span<const std::size_t> parameters);
  void accept(std::span<const std::size_t> parameters);
  void take_over(LockedStep& step, ReducerState& state, const Impl& before);
  Transport& control();
  /// Over ranks.
  void sum(std::vector<float>& values);

  // Ranks that are gone (elastic.cc).
  void hear_fault();
  std::exception_ptr lost(const TransportError& cause);
  std::exception_ptr agree_on_members(const std::string& cause);
  void give_up(const std::exception& cause);
  void check_resumable() const;
  /// What takes the place of this one, over the ranks that are left.
  std::unique_ptr<Impl> resumed();
  std::unique_ptr<Impl> over_members();
  void go_on_from(Impl& before);

  // Parameters that go other ways than before (learning.cc).
  std::uint32_t training_step(LockedStep& step) const { return step->number() + steps_before_; }
  void follow_phases(LockedStep& step);
  void learn(LockedStep& step);
  void agree_on_ways(LockedStep& step);
  void change_ways(LockedStep& step);
  void take_ways(LockedStep& step);
  void adopt_ways(LockedStep& step, const ReducerState& state);
  void note_waited();
  /// What fails there fails on all ranks, and they hear of it.
  void fail_together(LockedStep& step, const std::function<void()>& work);

  // Ranks with unequal numbers of samples (weights.cc).
  void weigh(double samples);
  void find_weights(LockedStep& step);

  // Before a step (setup.cc).
  void finalize(LockedStep& step);
  void begin(LockedStep& step);
  void take_in_added(LockedStep& step);
  void place_added(LockedStep& step);
  void make_sender();

  // Parts of a step (steps.cc).
  void wait_until(LockedStep& step, const std::function<bool()>& is_done);
  void wait_for_closed(LockedStep& step);
  void begin_ready(LockedStep& step);
  /// Asks the driver to compare states with other ranks, if one was loaded since the last step.
  void want_agreement(LockedStep& step);
  void check_ready(LockedStep& step, const Ready& one) const;
  void limit_messages(LockedStep& step);
  bool request(LockedStep& step, const ReducerStep::Order& together);
  ReducerHandle handle_of(LockedStep& step, std::uint32_t parameter) const;
  bool of_ready() const { return options_.order == SendingOrder::kOfReady; }
  bool mark_missing(LockedStep& step);
  void fail_missing(LockedStep& step, const std::string& names);
  void close_step(LockedStep& step);
  void complete_step(LockedStep& step);
  void check_requested(LockedStep& step, std::uint32_t parameter);
  /// With the step locked: what the trainer did from `begin` until now.
  void trace(Traced what, std::uint32_t step, std::uint32_t parameter, Clock::time_point begin);
  void note_exposed(std::uint32_t step, Clock::time_point begin);
  StreamView stream() const { return residence_ == nullptr ? StreamView{} : residence_->stream(); }

  std::shared_ptr<Survivors> survivors_;      ///< of an elastic one
  std::unique_ptr<Transport> own_transport_;  ///< of those who are left
  enum class Resumable : std::uint8_t { kNo, kTooFew, kYes };
  Resumable resumable_ = Resumable::kNo;
  const ReducerOptions options_;
  ExchangeContext context_;
  Parameters parameters_;
  Ways ways_;  ///< before the channel, a collective call: wrong rules are found without it
  std::unique_ptr<ReducerTrace> trace_;  ///< where one is asked for
  Transport& transport_;                 ///< the trainer's, or its own
  std::unique_ptr<Transport> channel_;   ///< of the driving thread
  std::unique_ptr<Transport>
      control_;  ///< of the trainer's thread: what "auto" agrees on, checkpoints
  Threads threads_;
  std::unique_ptr<Hierarchy> hierarchy_;  ///< null: all ranks exchange with all
  std::size_t taken_in_ = 0;              ///< so many parameters are part of steps
  StepWeights weights_;
  Gradients gradients_;
  Totals totals_;
  std::shared_ptr<ReducerHandle::Shared> handle_ = std::make_shared<ReducerHandle::Shared>();
  std::uint32_t steps_before_ = 0;     ///< complete ones of other runs, less those thrown away
  std::optional<LoadedState> loaded_;  ///< until a step is complete on all ranks

  // There once all parameters are known, but for the step.
  SharedStep step_;
  std::unique_ptr<Residence> residence_;
  std::unique_ptr<Sender> sender_;
  std::unique_ptr<Driver> driver_;
};

}  // namespace tersor
