// The progress engine of a rank: a lock, the wire, and the parts that hold the state and decide
// (Delivery, FlowControl, FaultDomains, Inquiry). The engine gives the parts the events of the wire
// and carries out their actions. The lock holder makes progress for all channels. No rank waits
// forever, on any network: the engine announces each fault to all ranks and distinguishes departed
// ranks from late ranks. To find the rank to blame, the engine asks the awaited ranks.
#pragma once

#include <tersor/network.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/transport/host/inquiry.h"

namespace tersor::host {

class ProgressEngine final : private Actions {
  struct State;

 public:
  /// The state, locked for the lifetime of this object.
  class Locked {
   public:
    State* operator->() const { return engine_.state_.get(); }

   private:
    friend class ProgressEngine;
    explicit Locked(ProgressEngine& engine) : engine_(engine), lock_(engine.shared_lock_) {}

    ProgressEngine& engine_;
    std::unique_lock<SharedLock> lock_;
  };

  explicit ProgressEngine(std::unique_ptr<Wire> wire);
  /// Says goodbye and frees everything the network has released. The remaining memory lives until
  /// the process ends.
  ~ProgressEngine();

  /// Leaves all channels and ends the wire while transports still exist. Every later call and every
  /// current wait of these transports throws TransportError.
  void close();

  const Wire::Traits& traits() const { return state_->core.traits; }
  ChannelState& world() { return world_; }
  BlockPools& pools() { return wire_.shared().pools; }
  [[nodiscard]] Locked lock() { return Locked(*this); }

  void leave(ChannelState& channel);
  /// Marks a channel as no longer used by this rank, after `leave`. The state is freed when all
  /// ranks have left the channel.
  void release(ChannelState& channel);
  void post(ChannelState& channel, Batch& batch);
  void progress(ChannelState& channel);
  void wait(ChannelState& channel, std::uint32_t seen, Clock::time_point until);

  /// Raises a fault of the channel's fault domain. Not for isolated channels.
  void raise(ChannelState& channel, const Fault& fault) {
    const Locked locked(*this);
    fail(*channel.domain, fault);
  }
  /// Ends a mismatch with a fault that names the options that differ, if the ranks send the options
  /// in time. Called by the thread of the operation with the mismatch.
  void resolve_mismatch(ChannelState& channel, const Mismatch& mismatch, const std::string& cause);
  /// See Inquiry::find.
  FailedRanks failed_ranks(ChannelState& channel, const Question& question,
                           std::span<const int> late);
  std::vector<int> hosts(const ChannelState& channel) const;

 private:
  /// Kept beyond the engine while the network may still access the memory.
  struct State {
    State(std::unique_ptr<Wire> own, Actions& actions);

    std::unique_ptr<Wire> wire;  // destroyed last: the wire owns the pools
    Channels channels;
    const Core core;
    FaultDomains faults;
    FlowControl flow;
    Delivery delivery;
    Inquiry inquiry;
  };

  Wire::Shutdown exchange_shutdown();
  bool exchange_goodbyes();
  void pause() const;
  void poll_until(ChannelState& channel, std::uint32_t seen, Clock::time_point until);
  /// Polls until `done()`, and pauses without the lock.
  void poll_until(Locked& locked, const std::function<bool()>& done);

  // The functions from here require the lock.
  template <typename Call>
  void guard(const Call& call);
  bool poll();
  void on_arrival(Wire::Arrival arrival);
  void receive_fully(Wire::Arrival arrival);
  void on_leave(const Head& head, int peer);
  void on_fault(const Head& head, const Wire::Arrival& arrival);
  void on_loss(int peer, const std::string& cause);
  void abort(FaultDomain& domain, const Fault& fault);
  void announce(const FaultDomain& domain);
  void announce_more();
  void announce_until(Clock::time_point until);

  void send(int peer, Head head, Wire::Payload payload) override;
  void receive(IncomingMessage& message) override;
  void keep(int peer, const Wire::Job* job) override { wire_.keep(peer, job); }
  void fail(FaultDomain& domain, const Fault& fault) override;
  bool may_send() const override { return wire_.right_thread() && wire_.running(); }
  std::size_t wire_bytes(std::size_t bytes) const override { return wire_.wire_bytes(bytes); }
  Clock::time_point earliest(const Wire::Arrival& arrival) const override {
    return wire_.earliest(arrival);
  }

  std::unique_ptr<State> state_;
  Wire& wire_;               // owned by the state
  SharedLock& shared_lock_;  // owned by the wire
  ChannelState& world_;
  const std::vector<int> host_names_;  // by world rank
  std::atomic<int> waiting_threads_{0};
  bool closed_ = false;
  std::optional<bool> ended_;  // True if the wire released all memory; unset until asked
  // True if the fault is not announced yet because the raising thread may not use the network. Only
  // without isolated channels.
  bool unannounced_ = false;
};

}  // namespace tersor::host
