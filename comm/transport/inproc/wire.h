// The wire between ranks in threads. The sending thread hands over each message including its
// block, at once or over an emulated link.
#pragma once

#include <tersor/inprocess.h>
#include <tersor/network.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/transport/inproc/link_emulator.h"

namespace tersor::inproc {

/// A payload on the emulated link, from sending to receiving.
struct LinkMessage : Packet {
  int to = 0;                      ///< world rank
  bool arrived = false;            ///< True if the payload has arrived
  std::shared_ptr<Wire::Job> job;  ///< set by the receiver's request
};

/// State shared by all ranks: the present ranks and the emulated link. All functions except
/// `attach` require the wires' lock.
class Network {
 public:
  Network(int ranks, const Link& link);

  int ranks() const { return static_cast<int>(receivers_.size()); }
  int host_of(int rank) const { return rank / ranks_per_host_; }
  bool emulated() const { return emulator_.has_value(); }
  const std::shared_ptr<Wire::Shared>& shared() const { return shared_; }

  void attach(int rank, std::function<void(Wire::Arrival)> on_arrival);
  void detach(int rank);

  void send(int peer, Wire::Arrival arrival, std::size_t bytes);
  void receive(LinkMessage& message, const std::shared_ptr<Wire::Job>& job);
  /// Advances the link to the current time. Returns true if a message arrived.
  bool advance();
  Clock::time_point earliest(const LinkMessage& message) const;

 private:
  Seconds now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  bool crosses_link(int peer, const Wire::Arrival& arrival) const;
  void arrive(LinkMessage& message);
  LinkMessage& new_message();

  const Clock::time_point start_ = Clock::now();
  const int ranks_per_host_;
  const std::shared_ptr<Wire::Shared> shared_;
  std::vector<std::function<void(Wire::Arrival)>> receivers_;  // by rank; empty after `detach`
  std::optional<LinkEmulator> emulator_;                       // link nodes are hosts
  std::deque<LinkMessage> messages_;
  std::vector<LinkMessage*> free_messages_;
};

class InProcessWire final : public Wire {
 public:
  InProcessWire(std::shared_ptr<Network> network, int rank);

  Traits traits() const override;
  int rank() const override { return rank_; }
  int ranks() const override { return network_->ranks(); }
  std::vector<int> host_names() const override;
  std::size_t wire_bytes(std::size_t payload_bytes) const override {
    constexpr std::size_t kHeadBytes = 32;  // counted header size of each message
    return kHeadBytes + payload_bytes;
  }

  void start(Events events) override { network_->attach(rank_, std::move(events.take)); }
  bool end(Shutdown shutdown) override;
  void send(int peer, MessageHead head, Payload payload) override;
  void receive_rest(const Arrival& arrival, ByteSpan into,
                    const std::shared_ptr<Job>& job) override;
  Clock::time_point earliest(const Arrival& arrival) const override;
  bool poll() override { return network_->advance(); }
  bool quiet() const override { return true; }
  void pause() const override;

 private:
  const std::shared_ptr<Network> network_;
  const int rank_;
};

}  // namespace tersor::inproc
