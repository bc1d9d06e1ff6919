// A transport on which things go wrong when a trap is sprung; else it is the one that it wraps.
#pragma once

#include <tersor/transport.h>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace tersor::faults {

/// What is to happen once, on any channel of one rank. May be used from several threads.
class Trap {
 public:
  using Action = std::function<void()>;

  /// `action` as soon as `operations` more have been started.
  void set(unsigned operations, Action action);
  /// Does at once what was set and has not happened.
  void spring();
  /// One bit of the next message of an all_gather or all_to_all that is not empty changes.
  void damage_next(std::uint32_t bit);

  void count_operation();
  /// `bytes`, or a copy that is damaged; the copy lives as long as the trap.
  ConstByteSpan pass(ConstByteSpan bytes);

 private:
  std::mutex mutex_;
  unsigned left_ = 0;
  Action action_;
  std::optional<std::uint32_t> bit_;
  std::list<std::vector<std::byte>> damaged_;
};

class FaultyTransport final : public Transport {
 public:
  /// Wraps `inner`, which it owns or which outlives it.
  FaultyTransport(std::shared_ptr<Transport> inner, std::shared_ptr<Trap> trap)
      : inner_(std::move(inner)), trap_(std::move(trap)) {}

  int rank() const override { return inner_->rank(); }
  int ranks() const override { return inner_->ranks(); }
  TransportTraits traits() const override { return inner_->traits(); }
  std::vector<int> hosts() const override { return inner_->hosts(); }
  TransferCounters counters() const override { return inner_->counters(); }
  std::uint32_t reserve_tags(std::uint32_t count) override { return inner_->reserve_tags(count); }

  Handle all_to_all(const Operation& operation, std::span<const ConstByteSpan> sends,
                    std::span<const std::size_t> capacities) override;
  Handle all_gather(const Operation& operation, ConstByteSpan send, std::size_t capacity) override;
  Handle send(const Operation& operation, int peer, ConstByteSpan bytes) override {
    return started(inner_->send(operation, peer, bytes));
  }
  Handle receive(const Operation& operation, int peer, std::size_t capacity) override {
    return started(inner_->receive(operation, peer, capacity));
  }
  Handle receive_any(const Operation& operation, std::size_t capacity) override {
    return started(inner_->receive_any(operation, capacity));
  }
  Handle sum(const Operation& operation, std::span<const ValueSpan> parts) override {
    return started(inner_->sum(operation, parts));
  }
  Handle maximum(const Operation& operation, std::span<const ValueSpan> parts) override {
    return started(inner_->maximum(operation, parts));
  }
  Handle barrier(const Operation& operation) override {
    return started(inner_->barrier(operation));
  }

  std::unique_ptr<Transport> channel() override;
  std::unique_ptr<Transport> split(std::span<const int> members) override;

  void progress() override { inner_->progress(); }
  void wait_activity(Clock::time_point until) override { inner_->wait_activity(until); }
  void wake() override { inner_->wake(); }
  void poison(std::string_view cause) override { inner_->poison(cause); }

 private:
  Handle started(Handle handle);

  std::shared_ptr<Transport> inner_;
  std::shared_ptr<Trap> trap_;
};

}  // namespace tersor::faults
