// The sending side of a step: one thread at a time, the reducer's own or the trainer's.
#include "comm/reducer/impl.h"

#include <algorithm>
#include <cstring>

namespace tersor {
namespace {

constexpr std::chrono::milliseconds kIdleWait{50};

// Rank 0's order, where it is a permutation of all parameters.
std::vector<std::uint32_t> parse_order(ConstByteSpan bytes, std::size_t parameters) {
  std::vector<std::uint32_t> order(bytes.size() / sizeof(std::uint32_t));
  if (!order.empty()) std::memcpy(order.data(), bytes.data(), order.size() * sizeof(order[0]));
  std::vector<std::uint32_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  bool valid = sorted.size() == parameters;
  for (std::size_t i = 0; valid && i < parameters; ++i) valid = sorted[i] == i;
  if (!valid)
    throw WireError("gradient reducer: rank 0's order of sending is no order of the parameters");
  return order;
}

}  // namespace

void GradientReducer::Impl::start_thread() {
  const bool own = options_.progress == ProgressBy::kThread && channel_->traits().any_thread;
  if (own && context_.ranks > 1 && !queues()) thread_ = std::thread([this] { work(); });
}

GradientReducer::Impl::~Impl() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  channel_->wake();
  thread_.join();
}

void GradientReducer::Impl::work() try {
  if (device_ != nullptr) device_->become_worker();
  while (!is_over()) drive_or_wait();
} catch (...) {
  fail(std::current_exception());
}

bool GradientReducer::Impl::is_over() const {
  const std::lock_guard lock(mutex_);
  return stopping_ || error_ != nullptr;
}

// One piece of work; false where all waits for the wire or the trainer.
bool GradientReducer::Impl::drive() {
  if (learn_order()) return true;
  while (true) {
    std::uint32_t bucket;
    {
      const std::lock_guard lock(mutex_);
      if (requested_.empty()) break;
      bucket = requested_.front();
      requested_.pop_front();
    }
    submit(bucket);
  }
  return pipeline_->advance();
}

// A fault that is heard of while nothing is under way is told in the reducer's name.
void GradientReducer::Impl::drive_or_wait() {
  if (drive()) return;
  const bool idle = pipeline_->idle() && !order_handle_.valid();
  try {
    pipeline_->wait_activity(Clock::now() + kIdleWait);
  } catch (const TransportError& error) {
    if (!idle) throw;
    throw TransportError(std::string(context_.name) + ": " + error.what());
  }
}

void GradientReducer::Impl::submit(std::uint32_t index) {
  const Bucket& bucket = buckets_[index];
  if (device_ != nullptr && !queues()) channel_->begin(bracket());  // tells of damaged frames
  for (const ChunkPlan& chunk : bucket.chunks)
    pipeline_->submit(chunk, [this, index] { chunk_done(index); });
}

void GradientReducer::Impl::chunk_done(std::uint32_t index) {
  if (--chunks_left_[index] != 0) return;
  const std::lock_guard lock(mutex_);
  for (const std::uint32_t slot : buckets_[index].slots) parameters_[slot].steps_done = step_ + 1;
  buckets_done_ += 1;
  if (closed_ && buckets_done_ == buckets_.size()) complete_step();
  changed_.notify_all();
}

// The first step: rank 0 tells all in which order its parameters became ready.
bool GradientReducer::Impl::learn_order() {
  if (!order_handle_.valid()) {
    const std::lock_guard lock(mutex_);
    if (!order_wanted_) return false;
    order_wanted_ = false;
    order_bytes_.clear();
    if (context_.rank == 0) order_bytes_ = sequence_;
    order_handle_ = channel_->all_gather({.name = "gradient reducer (order)",
                                          .signature = context_.signature,
                                          .tag = channel_->reserve_tags(1),
                                          .timeout = options_.timeout},
                                         std::as_bytes(std::span(order_bytes_)),
                                         slots_.size() * sizeof(std::uint32_t));
  }
  if (queues()) order_handle_.wait_synchronize();
  if (!order_handle_.test()) return false;
  const std::vector<std::uint32_t> order =
      context_.rank == 0 ? order_bytes_ : parse_order(order_handle_.received(0), slots_.size());
  order_handle_ = {};
  const std::lock_guard lock(mutex_);
  adopt_order(order);
  request_ready_buckets();
  return true;
}

// Messages and buffers for an order; with `mutex_` held.
void GradientReducer::Impl::adopt_order(std::vector<std::uint32_t> order) {
  order_ = std::move(order);
  const Planner planner(context_, hierarchy_.get(), threads_.count());
  buckets_ =
      make_buckets(planner, order_, {algorithm_, options_.bucket_bytes, options_.chunk_count});
  chunks_left_.clear();
  for (const Bucket& bucket : buckets_) {
    chunks_left_.push_back(bucket.chunks.size());
    for (const ChunkPlan& chunk : bucket.chunks) pipeline_->prepare(chunk);
  }
  order_known_ = true;
}

void GradientReducer::Impl::fail(std::exception_ptr error) {
  pipeline_->drop();
  order_handle_ = {};
  try {
    std::rethrow_exception(error);
  } catch (const TransportError&) {
  } catch (const std::exception& cause) {
    channel_->poison(cause.what());  // the others would wait for us
  }
  const std::lock_guard lock(mutex_);
  if (error_ == nullptr) error_ = error;
  changed_.notify_all();
}

void GradientReducer::Impl::drive_or_fail() {
  try {
    drive_or_wait();
  } catch (...) {
    fail(std::current_exception());
  }
}

bool GradientReducer::Impl::has_to_queue(Drain drain) const {
  const std::lock_guard lock(mutex_);
  const bool wanted = !requested_.empty() || order_wanted_ || drain == Drain::kYes;
  return wanted && context_.ranks > 1 && error_ == nullptr;
}

/// Brackets operations on a device.
Operation GradientReducer::Impl::bracket() const {
  return {.name = context_.name,
          .signature = context_.signature,
          .timeout = options_.timeout,
          .memory = memory_,
          .stream = stream()};
}

// For a transport that queues, on the trainer's thread: all that was requested, as far as ticks
// bring it; to the end where asked. Nothing waits but in the first step. A mistake that is found
// before anything is queued fails the call alone: the next one queues what was requested.
void GradientReducer::Impl::queue(Drain drain) {
  const std::lock_guard queueing(queueing_);
  if (!has_to_queue(drain)) return;
  const DeviceSide::Entry entry(*device_);
  try {
    while (learn_order()) {
    }
    channel_->begin(bracket());
  } catch (const InvalidArgument&) {
    throw;
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
  queue_requested(drain);
}

void GradientReducer::Impl::queue_requested(Drain drain) {
  try {
    while (drive()) {
    }
    if (drain == Drain::kYes) pipeline_->finish();
    channel_->end(bracket());
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
}

// What was found wrong since the last call, in replays of a captured step too.
void GradientReducer::Impl::hear_faults() {
  if (!queues() || context_.ranks == 1) return;
  try {
    channel_->progress();
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
}

// Waits for the driving thread, or drives where there is none.
void GradientReducer::Impl::wait_until(std::unique_lock<std::mutex>& lock,
                                       const std::function<bool()>& is_done) {
  while (!is_done()) {
    rethrow();
    if (thread_.joinable()) {
      changed_.wait(lock);
    } else {
      lock.unlock();
      if (queues()) {
        queue(Drain::kYes);
      } else {
        drive_or_fail();
      }
      lock.lock();
    }
  }
}

void GradientReducer::Impl::progress() {
  hear_faults();
  if (thread_.joinable() || pipeline_ == nullptr || context_.ranks == 1 || queues()) return;
  try {
    while (drive()) {
    }
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
}

}  // namespace tersor
