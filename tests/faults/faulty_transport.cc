// Implements faulty_transport.h.
#include "tests/faults/faulty_transport.h"

#include <utility>

namespace tersor::faults {

void Trap::set(unsigned operations, Action action) {
  const std::lock_guard lock(mutex_);
  left_ = operations;
  action_ = std::move(action);
}

void Trap::set_in_recovery(unsigned operations, Action action) {
  set(operations, std::move(action));
  waits_for_isolated_channel_ = true;
}

void Trap::spring() {
  Action action;
  {
    const std::lock_guard lock(mutex_);
    action = std::exchange(action_, {});
  }
  if (action) action();
}

void Trap::damage_next(std::uint32_t bit) {
  const std::lock_guard lock(mutex_);
  bit_ = bit;
}

void Trap::count_operation(bool on_isolated_channel) {
  {
    const std::lock_guard lock(mutex_);
    waits_for_isolated_channel_ &= !on_isolated_channel;
    if (!action_ || waits_for_isolated_channel_ || --left_ != 0) return;
  }
  spring();
}

ConstByteSpan Trap::pass(ConstByteSpan bytes) {
  const std::lock_guard lock(mutex_);
  if (!bit_ || bytes.empty()) return bytes;
  const std::size_t bit = *std::exchange(bit_, std::nullopt) % (bytes.size() * 8);
  auto& copy = damaged_.emplace_back(bytes.begin(), bytes.end());
  copy[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  return copy;
}

Handle FaultyTransport::started(Handle handle) {
  trap_->count_operation(is_isolated_);
  return handle;
}

Handle FaultyTransport::exchange(const Operation& operation, std::span<const SendTo> sends,
                                 std::span<const ReceiveFrom> receives) {
  std::vector<SendTo> passed(sends.begin(), sends.end());
  for (SendTo& message : passed) message.bytes = trap_->pass(message.bytes);
  return started(inner().exchange(operation, passed, receives));
}

Handle FaultyTransport::all_gather(const Operation& operation, ConstByteSpan send,
                                   std::size_t capacity) {
  return started(inner().all_gather(operation, trap_->pass(send), capacity));
}

std::unique_ptr<Transport> FaultyTransport::channel() {
  return std::make_unique<FaultyTransport>(inner().channel(), trap_, is_isolated_);
}

std::unique_ptr<Transport> FaultyTransport::split(std::span<const int> members) {
  return std::make_unique<FaultyTransport>(inner().split(members), trap_);
}

std::unique_ptr<Transport> FaultyTransport::isolated_channel() {
  return std::make_unique<FaultyTransport>(inner().isolated_channel(), trap_, true);
}

}  // namespace tersor::faults
