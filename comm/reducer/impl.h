// The implementation of GradientReducer. Its parts are independent: the step (ready, closed,
// requested and received), the sending side (Sender, Driver), the memory of gradients
// (MemoryBackend), the parameters and residuals (Parameters), the gradients of a step (Gradients),
// the choice of codecs and algorithms (CodecPolicy), and the statistics (Totals). Impl connects the
// parts. The step's lock guards all data shared by the trainer's thread and the driving thread. A
// LockedStep holds the lock.
#pragma once

#include "comm/collectives/hierarchy.h"
#include "comm/reducer/codec_policy.h"
#include "comm/reducer/driver.h"
#include "comm/reducer/gradients.h"
#include "comm/reducer/loading.h"
#include "comm/reducer/memory_backend.h"
#include "comm/reducer/parameters.h"
#include "comm/reducer/sender.h"
#include "comm/reducer/state.h"
#include "comm/reducer/step.h"
#include "comm/reducer/survivors.h"
#include "comm/reducer/totals.h"
#include "comm/reducer/trace.h"
#include "comm/reducer/weights.h"
#include "kernels/device/device.h"

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
  Impl(Transport& transport, ReducerOptions requested);

  void add(std::string name, const GradientShape& shape, ValueSpan gradient);

  /// One parameter in a call of `ready`.
  struct Ready {
    std::uint32_t parameter;
    std::optional<Gradients::Spans> spans;
    Contribution contribution;
  };

  // The trainer's side of a step (steps.cc).
  ReducerHandle ready(Ready one);
  /// Returns one handle per parameter. If one parameter is invalid, no parameter becomes ready.
  void ready(std::span<const Ready> together, std::span<ReducerHandle> handles);
  void flush();
  void wait();
  void wait_for(std::uint32_t parameter, std::uint32_t number);
  bool test(std::uint32_t parameter, std::uint32_t number);
  void progress();
  void finish_steps();
  /// Finishes flushed steps and returns the locked step. Throws InvalidArgumentError if gradients
  /// of the current step are ready.
  LockedStep between_steps(std::string_view call);
  /// The variant for calls that do not change a step. After an error, the step keeps its last
  /// state.
  LockedStep stopped();
  /// The variant for calls that use residuals: also works after an error.
  LockedStep stopped_between_steps(std::string_view call);

  // Checkpoints (checkpoints.cc); loss scales and transactions (transactions.cc).
  ReducerState exact_state();
  void load(const ReducerState& state, std::uint64_t common);
  void scale_residuals(float factor, std::span<const std::size_t> parameters);
  void check_transactions(std::string_view call) const;
  bool discard(std::span<const std::size_t> parameters);
  void accept(std::span<const std::size_t> parameters);
  void inherit(LockedStep& step, ReducerState& state, const Impl& previous);
  Transport& control();
  /// Sums the values over ranks.
  void sum(std::vector<float>& values);

  // Lost ranks (elastic.cc).
  void check_faults();
  std::exception_ptr on_transport_error(const TransportError& cause);
  std::exception_ptr agree_on_members(const TransportError& cause);
  void abort_exchange(const std::exception& cause);
  void check_resumable() const;
  /// Returns the replacement for this reducer, over the remaining ranks.
  std::unique_ptr<Impl> resumed();
  std::unique_ptr<Impl> over_members();
  void continue_from(Impl& previous);

  // Changes of codec and algorithm between steps (learning.cc).
  std::uint32_t training_step(LockedStep& step) const { return step->number() + step_offset_; }
  void apply_phases(LockedStep& step);
  void update_learner(LockedStep& step);
  void agree_on_policy(LockedStep& step);
  void change_policy(LockedStep& step);
  void apply_policy(LockedStep& step);
  void adopt_policy(LockedStep& step, const ReducerState& state);
  void record_wait();
  /// Runs `work`. An error fails the step on all ranks, and each rank reports the error.
  void run_or_fail(LockedStep& step, const std::function<void()>& work);

  // Ranks with unequal numbers of samples (weights.cc).
  void weigh(double samples);
  /// Throws InvalidArgumentError if ranks may be exchanging the weights of the next step.
  void check_unweighted(std::string_view call) const;
  void wait_for_weights(LockedStep& step);

  // Preparation before a step (setup.cc).
  void finalize(LockedStep& step);
  void begin(LockedStep& step);
  void extend_parameters(LockedStep& step);
  void prepare_added(LockedStep& step);
  void make_sender();

  // Parts of a step (steps.cc).
  void wait_until(LockedStep& step, const std::function<bool()>& is_done);
  void wait_for_closed(LockedStep& step);
  void begin_ready(LockedStep& step);
  /// Asks the driver to compare states with other ranks, if a state was loaded since the last step.
  void request_agreement(LockedStep& step);
  void check_ready(LockedStep& step, const Ready& one) const;
  void limit_messages(LockedStep& step);
  bool request(LockedStep& step, const ReducerStep::Order& together);
  ReducerHandle handle_of(LockedStep& step, std::uint32_t parameter) const;
  bool in_ready_order() const { return options_.order == SendingOrder::kReadyOrder; }
  bool mark_missing(LockedStep& step);
  void fail_missing(LockedStep& step, const std::string& names);
  void close_step(LockedStep& step);
  void complete_step(LockedStep& step);
  void check_requested(LockedStep& step, std::uint32_t parameter);
  /// Records an event of the trainer from `begin` until now. Call with the step locked.
  void trace(TraceType type, std::uint32_t step, std::uint32_t parameter, Clock::time_point begin);
  void record_exposed(std::uint32_t step, Clock::time_point begin);
  StreamView stream() const { return backend_ == nullptr ? StreamView{} : backend_->stream(); }

  std::shared_ptr<Survivors> survivors_;      ///< only in an elastic reducer
  std::unique_ptr<Transport> own_transport_;  ///< over the remaining ranks
  enum class Resumable : std::uint8_t { kNo, kTooFew, kYes };
  Resumable resumable_ = Resumable::kNo;
  const ReducerOptions options_;
  ExchangeContext context_;
  Parameters parameters_;
  CodecPolicy policy_;  ///< made before the channel (a collective call), because invalid rules
                        ///< throw locally
  std::unique_ptr<ReducerTrace> trace_;  ///< null without ReducerOptions::trace
  Transport& transport_;                 ///< the trainer's transport, or own_transport_
  std::unique_ptr<Transport> channel_;   ///< used by the driving thread
  std::unique_ptr<Transport>
      control_;  ///< for the trainer's thread: checkpoints and the agreement of "auto"
  Threads threads_;
  std::unique_ptr<Hierarchy> hierarchy_;  ///< null if all ranks exchange directly with all ranks
  std::size_t prepared_count_ = 0;        ///< number of parameters included in steps
  StepWeights weights_;
  Gradients gradients_;
  Totals totals_;
  std::shared_ptr<ReducerHandle::Shared> handle_ = std::make_shared<ReducerHandle::Shared>();
  std::uint32_t step_offset_ = 0;      ///< completed steps of earlier runs minus discarded steps
  std::optional<LoadedState> loaded_;  ///< empty after a step completed on all ranks

  int device_ = -1;  ///< of the gradients; negative on the host

  // Except for the step, null until all parameters are known.
  SharedStep step_;
  std::unique_ptr<MemoryBackend> backend_;
  std::unique_ptr<Sender> sender_;
  std::unique_ptr<Driver> driver_;
};

/// While this object exists, the device of the reducer's gradients is current in the calling
/// thread.
class OnDevice {
 public:
  explicit OnDevice(GradientReducer::Impl& reducer) : scope_(reducer.device_), reducer_(reducer) {}
  GradientReducer::Impl* operator->() const { return &reducer_; }

 private:
  const kernels::DeviceScope scope_;
  GradientReducer::Impl& reducer_;
};

}  // namespace tersor
