// The trainer's side of a step.
#include "comm/reducer/impl.h"
#include "comm/reducer/measure.h"

#include <algorithm>
#include <cstring>

namespace tersor {

// Once all parameters are known: residual memory, signature, pipeline, thread.
void GradientReducer::Impl::finalize() {
  if (finalized_) return;
  finalized_ = true;
  active_.assign(slots_.size(), 1);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.active = &active_[i];
    const bool kept = slot.codec->has_feedback();
    const StateRanges ranges = state_ranges(slot);
    const bool owns = kept && parameters_[i].algorithm == Algorithm::kTwoShot;
    residuals_.add(kept ? ranges.encoded.count : 0, owns ? ranges.owned.count : 0);
    slot.residual_first = ranges.encoded.first;
    slot.owner_first = ranges.owned.first;
  }
  bind_residuals();
  context_.slots = slots_;
  context_.counters.resize(slots_.size());
  totals_.slots.resize(slots_.size());
  context_.signature = signature();
  if (hierarchy_ != nullptr) hierarchy_->bind(context_);
  pipeline_ = std::make_unique<Pipeline>(context_);
  start_thread();
}

void GradientReducer::Impl::bind_residuals() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].residual = residuals_.sender(i);
    slots_[i].owner = residuals_.owner(i);
  }
}

std::uint64_t GradientReducer::Impl::signature() const {
  Signature signature;
  signature.add(std::string_view("reducer"))
      .add(options_.reduction)
      .add(options_.algorithm)
      .add(static_cast<std::uint32_t>(context_.ranks))
      .add(static_cast<std::uint64_t>(options_.chunk_count))
      .add(static_cast<std::uint64_t>(options_.bucket_bytes));
  for (std::size_t i = 0; i < slots_.size(); ++i)
    signature.add(slots_[i].dtype)
        .add(static_cast<std::uint64_t>(slots_[i].count))
        .add(std::uint64_t{0})
        .add(slots_[i].codec->spec().text())
        .add(parameters_[i].name);
  if (hierarchy_ != nullptr) add_groups(signature, hierarchy_->groups(), options_.host_codec);
  return signature.value();
}

void GradientReducer::Impl::rethrow() const {
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void GradientReducer::Impl::bind_gradient(std::uint32_t parameter, ValueSpan gradient) {
  Slot& slot = slots_[parameter];
  if (gradient.count() != slot.count || gradient.dtype() != slot.dtype ||
      gradient.memory() != Memory::kHost)
    throw InvalidArgument("\"" + parameters_[parameter].name + "\" was added with " +
                          std::to_string(slot.count) + " values of " +
                          std::string(dtype_name(slot.dtype)) + ", but " +
                          std::to_string(gradient.count()) + " of " +
                          std::string(dtype_name(gradient.dtype())) + " are ready");
  slot.input = gradient;
  slot.output = gradient;
}

ReducerHandle GradientReducer::Impl::ready(std::uint32_t parameter,
                                           std::optional<ValueSpan> gradient) {
  std::unique_lock lock(mutex_);
  rethrow();
  finalize();
  if (closed_) wait_until(lock, [this] { return !closed_; });
  awaited_ = true;
  Parameter& entry = parameters_[parameter];
  if (entry.ready)
    throw InvalidArgument("\"" + entry.name +
                          "\" is ready twice in one step; wait() or flush() "
                          "ends a step");
  if (gradient.has_value()) bind_gradient(parameter, *gradient);
  if (options_.measure_error == MeasureError::kOn)
    entry.relative_error = relative_error(
        *slots_[parameter].codec, {.count = slots_[parameter].count, .parameter = parameter},
        slots_[parameter].input, residuals_.current_sender(parameter));
  entry.ready = true;
  active_[parameter] = 1;
  sequence_.push_back(parameter);
  request_ready_buckets();
  ReducerHandle handle;
  handle.shared_ = handle_;
  handle.parameter_ = parameter;
  handle.step_ = step_;
  return handle;
}

bool GradientReducer::Impl::bucket_ready(const Bucket& bucket) const {
  return std::all_of(bucket.slots.begin(), bucket.slots.end(),
                     [&](std::uint32_t slot) { return parameters_[slot].ready; });
}

// In the order that all ranks know: a bucket goes when it and all before it are ready.
void GradientReducer::Impl::request_ready_buckets() {
  if (!order_known_) return;
  const std::size_t before = next_bucket_;
  while (next_bucket_ < buckets_.size() && bucket_ready(buckets_[next_bucket_]))
    requested_.push_back(static_cast<std::uint32_t>(next_bucket_++));
  if (next_bucket_ != before && thread_.joinable()) channel_->wake();
}

// Parameters that had no gradient: zeros; one with a residual keeps it.
void GradientReducer::Impl::mark_missing() {
  std::string missing;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].ready) continue;
    missing += (missing.empty() ? "\"" : ", \"") + parameters_[i].name + "\"";
    parameters_[i].ready = true;
    active_[i] = 0;
    sequence_.push_back(static_cast<std::uint32_t>(i));
    const ValueSpan& values = slots_[i].output;
    if (values.bytes() != 0) std::memset(values.pointer(), 0, values.bytes());
  }
  if (missing.empty() || options_.missing == MissingGradient::kInactive) return;
  const std::string cause = "at the end of step " + std::to_string(step_) +
                            " these parameters were not ready: " + missing;
  channel_->poison(cause);
  error_ = std::make_exception_ptr(InvalidArgument(
      cause + "; call ready() for each, or set ReducerOptions::missing to kInactive"));
  changed_.notify_all();
  rethrow();
}

void GradientReducer::Impl::close_step() {
  rethrow();
  finalize();
  if (closed_ || !awaited_) return;
  mark_missing();
  closed_ = true;
  awaited_ = false;
  if (context_.ranks == 1 || slots_.empty()) return complete_step();
  if (order_known_) {
    request_ready_buckets();
    if (buckets_done_ == buckets_.size()) complete_step();
  } else {
    order_wanted_ = true;
    if (thread_.joinable()) channel_->wake();
  }
}

void GradientReducer::Impl::flush() {
  const std::lock_guard lock(mutex_);
  close_step();
}

void GradientReducer::Impl::wait() {
  const auto start = Clock::now();
  std::unique_lock lock(mutex_);
  close_step();
  wait_until(lock, [this] { return !closed_; });
  awaited_ = true;
  totals_.exposed_seconds += seconds_since(start);
}

// Ends a step that was flushed; begins nothing.
void GradientReducer::Impl::finish_steps() {
  std::unique_lock lock(mutex_);
  rethrow();
  if (closed_) wait_until(lock, [this] { return !closed_; });
}

void GradientReducer::Impl::check_requested(std::uint32_t parameter) const {
  if (!order_known_ && !closed_)
    throw InvalidArgument(
        "in the first step everything is sent at its end: flush() before waiting "
        "for \"" +
        parameters_[parameter].name + "\"");
  for (std::size_t i = next_bucket_; i < buckets_.size(); ++i)
    for (const std::uint32_t slot : buckets_[i].slots)
      if (slot == parameter && !closed_)
        throw InvalidArgument("\"" + parameters_[parameter].name +
                              "\" waits for others of its "
                              "message that are not ready; flush() first");
}

void GradientReducer::Impl::wait_for(std::uint32_t parameter, std::uint32_t step) {
  const auto start = Clock::now();
  std::unique_lock lock(mutex_);
  const auto is_done = [&] { return parameters_[parameter].steps_done > step; };
  if (is_done()) return;
  rethrow();
  check_requested(parameter);
  wait_until(lock, is_done);
  totals_.exposed_seconds += seconds_since(start);
}

bool GradientReducer::Impl::test(std::uint32_t parameter, std::uint32_t step) {
  progress();
  const std::lock_guard lock(mutex_);
  if (parameters_[parameter].steps_done > step) return true;
  rethrow();
  return false;
}

// Everything is back: what was written counts from now on.
void GradientReducer::Impl::complete_step() {
  words_.step += 1;
  residuals_.commit();
  bind_residuals();
  for (Parameter& parameter : parameters_) {
    parameter.ready = false;
    parameter.steps_done = step_ + 1;
  }
  step_ += 1;
  sequence_.clear();
  next_bucket_ = 0;
  buckets_done_ = 0;
  closed_ = false;
  for (std::size_t i = 0; i < buckets_.size(); ++i) chunks_left_[i] = buckets_[i].chunks.size();
  snapshot_totals();
  changed_.notify_all();
}

}  // namespace tersor
