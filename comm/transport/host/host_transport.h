// The Transport of ranks on hosts, on any wire.
#pragma once

#include <tersor/transport.h>

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/transport/host/channel.h"
#include "comm/transport/host/exchange.h"
#include "comm/transport/host/staging.h"

namespace tersor::host {

class HostTransport final : public Transport {
 public:
  explicit HostTransport(std::shared_ptr<Channel> channel);
  explicit HostTransport(std::shared_ptr<ProgressEngine> engine)
      : HostTransport(std::make_shared<Channel>(std::move(engine))) {}
  /// Notifies the peers still waiting for this rank.
  ~HostTransport() override;

  int rank() const override { return channel_->rank(); }
  int ranks() const override { return channel_->ranks(); }
  std::vector<int> hosts() const override { return engine().hosts(channel_->state()); }
  TransportTraits traits() const override { return traits_; }
  TransferCounters counters() const override {
    const auto locked = engine().lock();
    return channel_->state().counters;
  }
  std::uint32_t reserve_tags(std::uint32_t count) override;

  Block block(std::size_t bytes) override;

  Handle exchange(const Operation& operation, std::span<const SendTo> sends,
                  std::span<const ReceiveFrom> receives) override;
  Handle all_gather(const Operation& operation, ConstByteSpan send, std::size_t capacity) override;
  Handle sum(const Operation& operation, std::span<const ValueSpan> parts) override {
    return reduce(operation, parts, Calling::kSum);
  }
  Handle maximum(const Operation& operation, std::span<const ValueSpan> parts) override {
    return reduce(operation, parts, Calling::kMaximum);
  }

  void begin(const Operation& operation) override;
  FrameFault* fault() override { return traits_.device ? staging().fault() : nullptr; }

  std::unique_ptr<Transport> channel() override;
  std::unique_ptr<Transport> split(std::span<const int> members) override;
  std::unique_ptr<Transport> isolated_channel() override;

  void progress() override { channel_->progress(); }
  void wait_activity(Clock::time_point until) override { channel_->wait_activity(until); }
  void wake() override { channel_->wake(); }
  void abort(std::string_view cause) override;
  void close() override { engine().close(); }

 private:
  ProgressEngine& engine() const { return channel_->engine(); }
  /// Throws CudaError in a build without CUDA.
  Staging& staging();
  Staging& staging_for(const Operation& operation);
  Start start(const Operation& operation, Calling call) const;
  std::unique_ptr<HostExchange> make_exchange(const Start& start, std::size_t receives);
  Handle reduce(const Operation& operation, std::span<const ValueSpan> parts, Calling call);
  std::unique_ptr<Transport> join(std::span<const int> members, FaultDomain::Kind kind);
  void refuse_if_isolated(const Operation& operation, std::string_view what) const;

  const TransportTraits traits_;
  std::shared_ptr<Channel> channel_;
  std::unique_ptr<Staging> staging_;  // created by the first operation on device memory
  std::uint32_t next_tag_ = 0;
};

}  // namespace tersor::host
