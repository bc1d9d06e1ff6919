// The GradientReducer's inside: parameters, the step under way, and the thread that drives it.
//
// A step is open while parameters become ready; `flush` closes it; it is complete when the last
// bucket is back. The trainer's thread closes and waits, the driving thread (the reducer's own, or
// the trainer's inside a call) sends. What both touch is guarded by `mutex_`.
#pragma once

#include "comm/collectives/hierarchy.h"
#include "comm/collectives/pipeline.h"
#include "comm/reducer/buckets.h"
#include "comm/reducer/device_side.h"
#include "comm/reducer/residuals.h"
#include "comm/reducer/rules.h"
#include "comm/reducer/state.h"

#include <tersor/reducer.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace tersor {

struct ReducerHandle::Shared {
  GradientReducer::Impl* reducer;
};

struct GradientReducer::Impl {
  Impl(Transport& transport, ReducerOptions wanted);
  ~Impl();

  // Parameters (reducer.cc).
  void add(std::string name, const GradientShape& shape, ValueSpan gradient);
  std::uint32_t index_of(std::string_view name) const;
  void choose_codec(const std::string& name, Slot& slot, std::string& reason);
  void check_memory(const std::string& name, Memory memory);

  // The trainer's side of a step (steps.cc).
  ReducerHandle ready(std::uint32_t parameter, std::optional<ValueSpan> gradient,
                      Contribution contribution);
  void flush();
  void wait();
  void wait_for(std::uint32_t parameter, std::uint32_t step);
  bool test(std::uint32_t parameter, std::uint32_t step);
  void progress();
  void finish_steps();

  // The driving side (driver.cc).
  void work();
  bool is_over() const;
  bool drive();
  void drive_or_wait();
  void drive_or_fail();
  void wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_done);
  bool learn_order();
  void adopt_order(std::vector<std::uint32_t> order);
  void submit(std::uint32_t bucket);
  void chunk_done(std::uint32_t bucket);
  void fail(std::exception_ptr error);
  enum class Drain : std::uint8_t { kNo, kYes };
  void queue(Drain drain);
  void queue_requested(Drain drain);
  Operation bracket() const;
  void hear_faults();
  bool has_to_queue(Drain drain) const;

  // Checkpoints (checkpoint.cc).
  ReducerState exact_state();
  ReducerState::Parameter exact_state(std::size_t parameter) const;
  ReducerState portable_state();
  void load(const ReducerState& state);
  void check_state(const ReducerState& state) const;
  void check_model(const ReducerState& state, std::size_t parameter) const;
  void check_codec(const ReducerState::Parameter& found, std::size_t parameter) const;
  void check_counts(const ReducerState& state, std::size_t parameter) const;
  void discard_step();
  void scale_residuals(float factor);
  void set_step(std::uint32_t step);
  void sum_over_ranks(std::vector<float>& values);
  Transport& control();

  // Statistics (statistics.cc).
  ReducerStatistics total_statistics();
  std::vector<ReducerStatistics> parameter_statistics();
  void reset_statistics();
  std::string explain();

  struct Parameter {
    std::string name;
    std::string reason;
    Algorithm algorithm = Algorithm::kAuto;
    bool given_anew = false;  ///< its gradient lasts for one step: the slot has it from ready() on
    bool ready = false;
    std::uint32_t steps_done = 0;
    double relative_error = 0;
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
  };

  // Steps, with `mutex_` held.
  void finalize();
  void start_thread();
  void rethrow() const;
  void bind_gradient(std::uint32_t parameter, ValueSpan gradient);
  void forget_gradients();
  void bind_residuals();
  bool contributes(std::uint32_t parameter, Contribution contribution) const;
  void leave_out(std::uint32_t parameter);
  void measure_error(std::uint32_t parameter);
  void check_capture() const;
  bool has_gradient(std::size_t parameter) const {
    return slots_[parameter].input.count() == slots_[parameter].count;
  }
  std::string wrongly_missing() const;
  void mark_missing();
  [[noreturn]] void fail_missing(const std::string& names);
  void close_step();
  void request_ready_buckets();
  void complete_step();
  bool bucket_ready(const Bucket& bucket) const;
  void check_requested(std::uint32_t parameter) const;
  std::uint64_t signature() const;
  void snapshot_totals();

  // Gradients on a device (driver.cc, steps.cc).
  void place_on_device();
  bool queues() const { return device_ != nullptr && channel_->traits().queues; }
  StreamView stream() const { return device_ == nullptr ? StreamView{} : device_->stream(); }
  void set_active(std::uint32_t parameter, bool active);
  void clear_gradient(std::uint32_t parameter);

  // The way between ranks (reducer.cc).
  void find_hierarchy();
  int encoding_ranks() const;
  StateRanges kept_ranges(std::size_t parameter, int rank) const;

  const ReducerOptions options_;
  Rules rules_;
  std::unique_ptr<Tuner> own_tuner_;
  Tuner* tuner_ = nullptr;              ///< where "auto" is asked for
  Transport& transport_;                ///< the trainer's
  std::unique_ptr<Transport> channel_;  ///< of the driving thread
  std::unique_ptr<Transport> control_;  ///< of the trainer's thread, for checkpoints; made then
  Threads threads_;
  Algorithm algorithm_;                             ///< of what is encoded
  std::unique_ptr<Hierarchy> hierarchy_;            ///< null: all ranks exchange with all
  std::shared_ptr<const Codec> single_host_codec_;  ///< of all, where a hierarchy has one host
  std::vector<Slot> slots_;
  std::vector<Parameter> parameters_;
  std::map<std::string, std::uint32_t, std::less<>> names_;
  std::vector<std::uint32_t> active_;   ///< one word a parameter, for codecs
  Memory memory_ = Memory::kHost;       ///< of the gradients
  std::unique_ptr<DeviceSide> device_;  ///< null: gradients lie on the host
  Residuals residuals_;
  StateWords words_;
  ExchangeContext context_;
  std::unique_ptr<Pipeline> pipeline_;
  std::shared_ptr<ReducerHandle::Shared> handle_ = std::make_shared<ReducerHandle::Shared>();

  std::mutex queueing_;  ///< of the one thread that queues; taken before `mutex_`
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool finalized_ = false;
  bool stopping_ = false;
  bool closed_ = false;    ///< the step under way was flushed
  bool awaited_ = true;    ///< nobody flushed since the last wait
  bool left_out_ = false;  ///< in this step some parameter is inactive
  bool order_known_ = false;
  bool order_wanted_ = false;            ///< the driver should learn it
  std::uint32_t step_ = 0;               ///< complete ones; also the number of the one under way
  std::vector<std::uint32_t> sequence_;  ///< of `ready` in this step
  std::vector<std::uint32_t> order_;     ///< rank 0's
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> chunks_left_;  ///< of each bucket; the driver's
  std::size_t next_bucket_ = 0;           ///< not yet requested
  std::size_t buckets_done_ = 0;
  std::deque<std::uint32_t> requested_;  ///< buckets for the driver
  std::exception_ptr error_;
  Totals totals_;
  std::uint64_t sent_before_ = 0;       ///< the last reset
  std::uint64_t overflows_before_ = 0;  ///< on a device
  double wire_before_ = 0;

  Handle order_handle_;  ///< the driver's
  std::vector<std::uint32_t> order_bytes_;
  std::thread thread_;
};

}  // namespace tersor
