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
      device_number_(kernels::current_device()),
      pinned_(pinned_pool(channel_->engine())),
      device_(channel_->engine().pools().device()),
      fault_(sizeof(FrameFault)) {}

void Staging::check(const Operation& operation) const {
  kernels::require_device();
  const int current = kernels::current_device();
  if (current != device_number_)
    refuse(operation, "this channel's memory is on device " + std::to_string(device_number_) +
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
  reclaim();
  if (free_events_.empty()) return std::make_unique<Events>();
  std::unique_ptr<Events> events = std::move(free_events_.back());
  free_events_.pop_back();
  return events;
}

void Staging::reclaim() {
  std::erase_if(retired_, [this](Retired& retired) {
    if (!retired.last->done()) return false;
    free_events_.push_back(std::move(retired.events));
    return true;
  });
}

// A device with errors never completes queued work.
bool Staging::drain(Clock::time_point until) try {
  for (reclaim(); !retired_.empty(); reclaim()) {
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return leaked_.empty();
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
    std::move(blocks_.begin(), blocks_.end(), std::back_inserter(staging_.leaked_));
  }
}

// An error may have interrupted the queueing of copies.
const kernels::Event& Copies::last_event() {
  if (state_ == State::kQueueingToHost) events_->to_host.record(to_host());
  if (state_ == State::kQueueingToHost || state_ == State::kToHost) return events_->to_host;
  if (state_ == State::kQueueingToDevice) events_->to_device.record(to_device());
  if (state_ == State::kReadByCaller) events_->to_device.record(stream_);
  return events_->to_device;
}

StreamView Copies::begin_to_host() {
  kernels::order(stream_, to_host(), events_->ready);
  state_ = State::kQueueingToHost;
  return to_host();
}

void Copies::end_to_host() {
  events_->to_host.record(to_host());
  state_ = State::kToHost;
}

bool Copies::to_host_done() {
  if (!events_->to_host.done()) return false;
  state_ = State::kIdle;
  return true;
}

StreamView Copies::begin_to_device() {
  state_ = State::kQueueingToDevice;
  return to_device();
}

void Copies::end_to_device() {
  events_->to_device.record(to_device());
  if (to_device().handle != stream_.handle) events_->to_device.hold(stream_);
  state_ = State::kToDevice;
}

void Copies::retain_for_caller(Block block) {
  blocks_.push_back(std::move(block));
  state_ = State::kReadByCaller;
}

}  // namespace tersor::host
