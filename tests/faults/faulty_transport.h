// A transport with injected faults. Forwards all other calls to the wrapped transport.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/transport/forwarding.h"

namespace tersor::faults {

/// An action executed once, on any channel of one rank. Thread-safe.
class Trap {
 public:
  using Action = std::function<void()>;

  /// Runs `action` after `operations` more operations have started.
  void set(unsigned operations, Action action);
  /// Like `set`, but counts from the first operation on an isolated channel.
  void set_in_recovery(unsigned operations, Action action);
  /// Runs a pending action now.
  void spring();
  /// Flips one bit of the next non-empty message of an all_gather or exchange.
  void damage_next(std::uint32_t bit);

  void count_operation(bool on_isolated_channel);
  /// Returns `bytes`, or a damaged copy. The copy lives as long as the trap.
  ConstByteSpan pass(ConstByteSpan bytes);

 private:
  std::mutex mutex_;
  unsigned left_ = 0;
  bool waits_for_isolated_channel_ = false;
  Action action_;
  std::optional<std::uint32_t> bit_;
  std::list<std::vector<std::byte>> damaged_;
};

class FaultyTransport final : public ForwardingTransport {
 public:
  /// Wraps `inner`.
  FaultyTransport(std::shared_ptr<Transport> inner, std::shared_ptr<Trap> trap,
                  bool is_isolated = false)
      : ForwardingTransport(std::move(inner)), trap_(std::move(trap)), is_isolated_(is_isolated) {}

  Handle exchange(const Operation& operation, std::span<const SendTo> sends,
                  std::span<const ReceiveFrom> receives) override;
  Handle all_gather(const Operation& operation, ConstByteSpan send, std::size_t capacity) override;
  Handle sum(const Operation& operation, std::span<const ValueSpan> parts) override {
    return started(inner().sum(operation, parts));
  }
  Handle maximum(const Operation& operation, std::span<const ValueSpan> parts) override {
    return started(inner().maximum(operation, parts));
  }

  std::unique_ptr<Transport> channel() override;
  std::unique_ptr<Transport> split(std::span<const int> members) override;
  std::unique_ptr<Transport> isolated_channel() override;

 private:
  Handle started(Handle handle);

  std::shared_ptr<Trap> trap_;
  const bool is_isolated_;
};

}  // namespace tersor::faults
