#include "comm/transport/host/stepwise.h"

#include <cstring>
#include <utility>

namespace tersor::host {

Stepwise::Stepwise(const Start& start, HostSteps steps, std::size_t item_bytes)
    : HostTransfer(start), steps_(std::move(steps)), item_bytes_(item_bytes) {}

void Stepwise::take_items(std::size_t count) {
  owner_ =
      std::make_shared<const Block>(channel().engine().pools().host().take(count * item_bytes_));
  items_ = owner_->writable().data();
}

void Stepwise::begin() {
  if (!steps_.empty()) post();
}

void Stepwise::post() {
  const HostStep& step = steps_[now_];
  address(batch_, 0);  // steps of two ranks match in order
  if (owns_items()) batch_.keep_alive = owner_;
  lend(batch_);
  batch_.outgoing = {};
  batch_.incoming = {};
  if (step.to != HostStep::kNobody) {
    outgoing_ = {.peer = step.to, .payload = bytes_of(step.sent)};
    batch_.outgoing = {&outgoing_, 1};
  }
  if (step.from != HostStep::kNobody) {
    incoming_.peer = step.from;
    incoming_.least_bytes = incoming_.capacity = bytes_of(step.taken).size();
    incoming_.arrived.store(false, std::memory_order_relaxed);
    batch_.incoming = {&incoming_, 1};
  }
  channel().post(batch_);
}

bool Stepwise::step() {
  while (now_ < steps_.size()) {
    if (!batch_.closed()) return false;
    take();
    if (++now_ < steps_.size()) post();
  }
  finish();
  return true;
}

void Stepwise::take() {
  const HostStep& step = steps_[now_];
  if (step.from == HostStep::kNobody) return;
  Block came = std::move(incoming_.payload);
  if (step.combines) return combine(step, std::move(came));
  const ConstByteSpan bytes = came.bytes();
  if (!bytes.empty()) std::memcpy(at(step.taken.first), bytes.data(), bytes.size());
}

std::vector<int> Stepwise::missing() const {
  const HostStep& step = steps_[now_];
  const bool has_come =
      step.from == HostStep::kNobody || incoming_.arrived.load(std::memory_order_acquire);
  return {has_come && step.to != HostStep::kNobody ? step.to : step.from};
}

}  // namespace tersor::host
