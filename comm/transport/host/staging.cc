#include "comm/transport/host/staging.h"
#include "comm/transport/arguments.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "kernels/device/device.h"

namespace tersor::host {
namespace {

BlockPool& pinned_pool(ProgressEngine& engine) {
  kernels::require_device();
  return engine.pools().pinned();
}

}  // namespace

Staging::Staging(std::shared_ptr<Channel> channel)
    : channel_(std::move(channel)),
      number_(kernels::current_device()),
      pinned_(pinned_pool(channel_->engine())),
      device_(channel_->engine().pools().device()),
      fault_(sizeof(FrameFault)) {}

void Staging::check(const Operation& operation) const {
  kernels::require_device();
  const int current = kernels::current_device();
  if (current != number_)
    refuse(operation, "this channel's memory is on device " + std::to_string(number_) +
                          ", but the current device is " + std::to_string(current) +
                          ": call cudaSetDevice first, or make a channel per device");
  if (kernels::capture_of(operation.stream) != 0)
    refuse(operation,
           "the exchange uses the host and cannot be captured in a graph: call it outside of the "
           "capture, or use NCCL");
  kernels::check_stream(operation.stream);
}

void Staging::check(const Operation& operation, ConstByteSpan bytes) try {
  if (!bytes.empty()) kernels::check_device_pointer(bytes.data());
} catch (const InvalidArgumentError& error) {
  refuse(operation, std::string("the bytes to send: ") + error.what());
}

BlockPool& Staging::network_pool(std::size_t bytes) const {
  return bytes >= channel_->engine().traits().least_device_bytes ? device_ : pinned_;
}

std::unique_ptr<Staging::Events> Staging::take_events() {
  sweep();
  if (free_events_.empty()) return std::make_unique<Events>();
  std::unique_ptr<Events> events = std::move(free_events_.back());
  free_events_.pop_back();
  return events;
}

void Staging::sweep() {
  std::erase_if(retired_, [this](Retired& retired) {
    if (!retired.last->done()) return false;
    free_events_.push_back(std::move(retired.events));
    return true;
  });
}

// A device with errors never completes queued work.
bool Staging::settle(Clock::time_point until) try {
  for (sweep(); !retired_.empty(); sweep()) {
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return lost_.empty();
} catch (const Error&) {
  return false;
}

Copies::Copies(Staging& staging, const Operation& operation)
    : staging_(staging),
      stream_(operation.stream),
      in_order_(operation.in_order),
      events_(staging_.take_events()) {}

Copies::~Copies() {
  if (state_ == State::kIdle) {
    staging_.free_events_.push_back(std::move(events_));
    return;
  }
  try {
    const kernels::Event& last = last_event();
    staging_.retired_.push_back({std::move(events_), &last, std::move(blocks_)});
  } catch (const Error&) {
    std::move(blocks_.begin(), blocks_.end(), std::back_inserter(staging_.lost_));
  }
}

// An error may have interrupted the queueing of copies.
const kernels::Event& Copies::last_event() {
  if (state_ == State::kQueueingDown) events_->down.record(down());
  if (state_ == State::kQueueingDown || state_ == State::kDown) return events_->down;
  if (state_ == State::kQueueingUp) events_->up.record(up());
  if (state_ == State::kRead) events_->up.record(stream_);
  return events_->up;
}

StreamView Copies::begin_down() {
  kernels::order(stream_, down(), events_->ready);
  state_ = State::kQueueingDown;
  return down();
}

void Copies::end_down() {
  events_->down.record(down());
  state_ = State::kDown;
}

bool Copies::came_down() {
  if (!events_->down.done()) return false;
  state_ = State::kIdle;
  return true;
}

StreamView Copies::begin_up() {
  state_ = State::kQueueingUp;
  return up();
}

void Copies::end_up() {
  events_->up.record(up());
  if (up().handle != stream_.handle) events_->up.hold(stream_);
  state_ = State::kUp;
}

void Copies::keep_for_caller(Block block) {
  blocks_.push_back(std::move(block));
  state_ = State::kRead;
}

}  // namespace tersor::host
