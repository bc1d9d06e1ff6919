#include "comm/transport/host/step_transfer.h"

#include <cstring>
#include <utility>

namespace tersor::host {

StepTransfer::StepTransfer(const Start& start, HostSteps steps, std::size_t item_bytes)
    : HostTransfer(start), steps_(std::move(steps)), item_bytes_(item_bytes) {}

void StepTransfer::allocate_items(std::size_t count) {
  owner_ =
      std::make_shared<const Block>(channel().engine().pools().host().take(count * item_bytes_));
  items_ = owner_->writable().data();
}

void StepTransfer::begin() {
  if (!steps_.empty()) post();
}

void StepTransfer::post() {
  const HostStep& step = steps_[current_];
  initialize(batch_, 0);  // steps of two ranks match in order
  if (owns_items()) batch_.keep_alive = owner_;
  use_caller_memory(batch_);
  batch_.outgoing = {};
  batch_.incoming = {};
  if (step.to != HostStep::kNoRank) {
    outgoing_ = {.peer = step.to, .payload = bytes_of(step.sent)};
    batch_.outgoing = {&outgoing_, 1};
  }
  if (step.from != HostStep::kNoRank) {
    incoming_.peer = step.from;
    incoming_.min_bytes = incoming_.capacity = bytes_of(step.received).size();
    incoming_.arrived.store(false, std::memory_order_relaxed);
    batch_.incoming = {&incoming_, 1};
  }
  channel().post(batch_);
}

bool StepTransfer::step() {
  while (current_ < steps_.size()) {
    if (!batch_.closed()) return false;
    process_received();
    if (++current_ < steps_.size()) post();
  }
  finish();
  return true;
}

void StepTransfer::process_received() {
  const HostStep& step = steps_[current_];
  if (step.from == HostStep::kNoRank) return;
  Block received = std::move(incoming_.payload);
  if (step.combines) return combine(step, std::move(received));
  const ConstByteSpan bytes = received.bytes();
  if (!bytes.empty()) std::memcpy(at(step.received.first), bytes.data(), bytes.size());
}

std::vector<int> StepTransfer::missing() const {
  const HostStep& step = steps_[current_];
  const bool has_arrived =
      step.from == HostStep::kNoRank || incoming_.arrived.load(std::memory_order_acquire);
  return {has_arrived && step.to != HostStep::kNoRank ? step.to : step.from};
}

}  // namespace tersor::host
