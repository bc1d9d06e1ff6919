// The trainer's side of a step.
#include "comm/collectives/bind.h"
#include "comm/collectives/host_copy.h"
#include "comm/reducer/impl.h"
#include "comm/reducer/measure.h"
#include "kernels/device/device.h"

#include <algorithm>
#include <cstring>

namespace tersor {
namespace {

// Equal to itself one byte further on, and the first one is 0.
bool all_bits_zero(ConstValueSpan values) {
  if (values.bytes() == 0) return true;
  const std::byte* first = values.pointer();
  return *first == std::byte{0} && std::memcmp(first, first + 1, values.bytes() - 1) == 0;
}

}  // namespace

// Once all parameters are known: residual memory, signature, pipeline, thread.
void GradientReducer::Impl::finalize() {
  if (finalized_) return;
  finalized_ = true;
  active_.assign(slots_.size(), 1);
  if (memory_ == Memory::kDevice) place_on_device();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.active = device_ == nullptr ? &active_[i] : device_->active(i);
    const StateRanges kept = kept_ranges(i, context_.rank);
    residuals_.add(kept.encoded.count, kept.owned.count);
    slot.residual_first = kept.encoded.first;
    slot.owner_first = kept.owned.first;
  }
  bind_residuals();
  context_.slots = slots_;
  context_.counters.resize(slots_.size());
  totals_.slots.resize(slots_.size());
  context_.signature = signature();
  context_.adder = hierarchy_ == nullptr ? channel_.get() : hierarchy_->owners();
  pipeline_ = std::make_unique<Pipeline>(context_);
  start_thread();
}

void GradientReducer::Impl::place_on_device() {
  device_ = std::make_unique<DeviceSide>(options_.stream, slots_.size());
  residuals_.place_on_device(stream());
  context_.memory = Memory::kDevice;
  context_.stream = stream();
  context_.words = device_->words();
  context_.device_overflows = device_->overflows();
  context_.fault = channel_->fault();
}

void GradientReducer::Impl::set_active(std::uint32_t parameter, bool active) {
  active_[parameter] = active ? 1 : 0;
  if (device_ != nullptr) device_->set_active(parameter, active);
}

void GradientReducer::Impl::clear_gradient(std::uint32_t parameter) {
  const ValueSpan& values = slots_[parameter].output;
  if (device_ != nullptr)
    return kernels::zero_bytes(values.pointer(), values.bytes(), device_->trainer());
  if (values.bytes() != 0) std::memset(values.pointer(), 0, values.bytes());
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
  if (context_.on_device()) signature.add(std::string_view("device"));
  if (hierarchy_ != nullptr) add_groups(signature, hierarchy_->groups(), options_.host_codec);
  return signature.value();
}

void GradientReducer::Impl::rethrow() const {
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void GradientReducer::Impl::bind_gradient(std::uint32_t parameter, ValueSpan gradient) {
  Slot& slot = slots_[parameter];
  if (gradient.count() != slot.count || gradient.dtype() != slot.dtype ||
      gradient.memory() != memory_)
    throw InvalidArgument(
        "\"" + parameters_[parameter].name + "\" was added with " + std::to_string(slot.count) +
        " values of " + std::string(dtype_name(slot.dtype)) + " " +
        std::string(memory_text(memory_)) + ", but " + std::to_string(gradient.count()) + " of " +
        std::string(dtype_name(gradient.dtype())) + " " +
        std::string(memory_text(gradient.memory())) + " are ready");
  slot.input = gradient;
  slot.output = gradient;
}

// The caller may free after a step what it gave for it alone.
void GradientReducer::Impl::forget_gradients() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!parameters_[i].given_anew) continue;
    slots_[i].input = {};
    slots_[i].output = {};
  }
}

bool GradientReducer::Impl::contributes(std::uint32_t parameter, Contribution contribution) const {
  if (contribution != Contribution::kGradientUnlessZero)
    return contribution == Contribution::kGradient;
  return memory_ == Memory::kDevice || !all_bits_zero(slots_[parameter].input);
}

// It sends zeros; one with a residual keeps it.
void GradientReducer::Impl::leave_out(std::uint32_t parameter) {
  set_active(parameter, false);
  clear_gradient(parameter);
  left_out_ = true;
}

void GradientReducer::Impl::measure_error(std::uint32_t parameter) {
  const Slot& slot = slots_[parameter];
  const HostCopy gradient(slot.input, options_.stream);
  const HostCopy residual(residuals_.current_sender(parameter), stream());
  parameters_[parameter].relative_error =
      relative_error(*slot.codec, {.count = slot.count, .parameter = parameter}, gradient.values(),
                     residual.values());
}

// A graph holds the addresses of one step: residuals that change places between steps would be
// read again and again, and written where nobody reads.
void GradientReducer::Impl::check_capture() const {
  if (device_ == nullptr || options_.transactions == Transactions::kOff) return;
  if (kernels::capture_of(options_.stream) != 0)
    throw InvalidArgument(
        "a step cannot be captured where residuals are kept in two generations: set "
        "ReducerOptions::transactions to kOff");
}

ReducerHandle GradientReducer::Impl::ready(std::uint32_t parameter,
                                           std::optional<ValueSpan> gradient,
                                           Contribution contribution) {
  std::unique_lock lock(mutex_);
  rethrow();
  finalize();
  if (closed_) wait_until(lock, [this] { return !closed_; });
  check_capture();
  awaited_ = true;
  Parameter& entry = parameters_[parameter];
  if (entry.ready)
    throw InvalidArgument("\"" + entry.name +
                          "\" is ready twice in one step; wait() or flush() "
                          "ends a step");
  if (gradient.has_value()) bind_gradient(parameter, *gradient);
  if (!has_gradient(parameter))
    throw InvalidArgument("\"" + entry.name +
                          "\" was added without a gradient: give it to ready()");
  if (!contributes(parameter, contribution)) leave_out(parameter);
  if (options_.measure_error == MeasureError::kOn) measure_error(parameter);
  entry.ready = true;
  sequence_.push_back(parameter);
  request_ready_buckets();
  ReducerHandle handle;
  handle.shared_ = handle_;
  handle.parameter_ = parameter;
  handle.step_ = step_;
  lock.unlock();
  if (queues()) queue(Drain::kNo);
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
  if (next_bucket_ == before) return;
  if (device_ != nullptr) device_->follow_trainer();
  if (thread_.joinable()) channel_->wake();
}

// Those whose absence is a mistake: the result has no place where no gradient was given.
std::string GradientReducer::Impl::wrongly_missing() const {
  std::string names;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].ready) continue;
    if (options_.missing == MissingGradient::kInactive && has_gradient(i)) continue;
    names += (names.empty() ? "\"" : ", \"") + parameters_[i].name + "\"";
  }
  return names;
}

// Parameters that had no gradient.
void GradientReducer::Impl::mark_missing() {
  const std::string mistakes = wrongly_missing();
  if (!mistakes.empty()) fail_missing(mistakes);
  for (std::uint32_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].ready) continue;
    parameters_[i].ready = true;
    sequence_.push_back(i);
    leave_out(i);
  }
}

void GradientReducer::Impl::fail_missing(const std::string& names) {
  const std::string cause =
      "at the end of step " + std::to_string(step_) + " these parameters were not ready: " + names;
  channel_->poison(cause);
  error_ = std::make_exception_ptr(InvalidArgument(
      cause + "; call ready() for each, or set ReducerOptions::missing to kInactive"));
  changed_.notify_all();
  std::rethrow_exception(error_);
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
  {
    const std::lock_guard lock(mutex_);
    close_step();
  }
  if (queues()) queue(Drain::kYes);
}

void GradientReducer::Impl::wait() {
  const auto start = Clock::now();
  hear_faults();
  std::unique_lock lock(mutex_);
  close_step();
  wait_until(lock, [this] { return !closed_; });
  if (device_ != nullptr) device_->lead_trainer();
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
  if (queues() && !closed_)  // how far each rank is differs: all must send in one order
    throw InvalidArgument("flush() before waiting for \"" + parameters_[parameter].name +
                          "\": over this transport a step is sent to its end by all ranks alike");
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
  if (!is_done()) {
    rethrow();
    check_requested(parameter);
    wait_until(lock, is_done);
  }
  if (device_ != nullptr) device_->lead_trainer();
  totals_.exposed_seconds += seconds_since(start);
}

bool GradientReducer::Impl::test(std::uint32_t parameter, std::uint32_t step) {
  progress();
  const std::lock_guard lock(mutex_);
  if (parameters_[parameter].steps_done > step) {
    if (device_ != nullptr) device_->lead_trainer();
    return true;
  }
  rethrow();
  return false;
}

// Everything is back: what was written counts from now on.
void GradientReducer::Impl::complete_step() {
  words_.step += 1;
  if (device_ != nullptr) device_->advance_step();
  if (left_out_)  // flags are 1 between steps: so graphs of a step find them
    for (std::uint32_t i = 0; i < active_.size(); ++i) set_active(i, true);
  left_out_ = false;
  residuals_.commit();
  bind_residuals();
  forget_gradients();
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
