// A base class for transports that wrap another transport and change little or nothing.
#pragma once

#include <tersor/transport.h>

#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tersor {

/// Forwards every call to the inner transport, except `block`: this base returns an empty block.
class ForwardingTransport : public Transport {
 public:
  int rank() const override { return inner_->rank(); }
  int ranks() const override { return inner_->ranks(); }
  std::vector<int> hosts() const override { return inner_->hosts(); }
  TransportTraits traits() const override { return inner_->traits(); }
  TransferCounters counters() const override { return inner_->counters(); }

  std::uint32_t reserve_tags(std::uint32_t count) override { return inner_->reserve_tags(count); }
  Handle exchange(const Operation& operation, std::span<const SendTo> sends,
                  std::span<const ReceiveFrom> receives) override {
    return inner_->exchange(operation, sends, receives);
  }
  Handle all_gather(const Operation& operation, ConstByteSpan send, std::size_t capacity) override {
    return inner_->all_gather(operation, send, capacity);
  }
  Handle sum(const Operation& operation, std::span<const ValueSpan> parts) override {
    return inner_->sum(operation, parts);
  }
  Handle maximum(const Operation& operation, std::span<const ValueSpan> parts) override {
    return inner_->maximum(operation, parts);
  }

  std::unique_ptr<Transport> channel() override { return inner_->channel(); }
  std::unique_ptr<Transport> split(std::span<const int> members) override {
    return inner_->split(members);
  }
  std::unique_ptr<Transport> isolated_channel() override { return inner_->isolated_channel(); }

  void begin(const Operation& operation) override { inner_->begin(operation); }
  void end(const Operation& operation) override { inner_->end(operation); }
  FrameFault* fault() override { return inner_->fault(); }

  void progress() override { inner_->progress(); }
  void wait_activity(Clock::time_point until) override { inner_->wait_activity(until); }
  void wake() override { inner_->wake(); }
  void abort(std::string_view cause) override { inner_->abort(cause); }
  void close() override { inner_->close(); }

 protected:
  explicit ForwardingTransport(std::shared_ptr<Transport> inner) : inner_(std::move(inner)) {}
  Transport& inner() const { return *inner_; }

 private:
  std::shared_ptr<Transport> inner_;
};

}  // namespace tersor
