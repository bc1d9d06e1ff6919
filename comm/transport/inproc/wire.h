// The wire between ranks that are threads: a message is handed over, block and all, by the thread
// that sends it, at once or over an emulated link.
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

/// A payload on the emulated link, from its sending until it was received.
struct Message : Packet {
  int to = 0;                      ///< rank
  bool there = false;              ///< has arrived
  std::shared_ptr<Wire::Job> job;  ///< of the receiver, once it asked
};

/// What all ranks share: who is there, and the emulated link. With the lock of the wires held, but
/// for `enter` and `leave`.
class Network {
 public:
  Network(int ranks, const Link& link);

  int ranks() const { return static_cast<int>(takers_.size()); }
  int host_of(int rank) const { return rank / ranks_per_host_; }
  bool emulated() const { return emulator_.has_value(); }
  const std::shared_ptr<Wire::Shared>& shared() const { return shared_; }

  void enter(int rank, std::function<void(Wire::Arrival)> take);
  void leave(int rank);

  void send(int peer, Wire::Arrival arrival, std::size_t bytes);
  void receive(Message& message, const std::shared_ptr<Wire::Job>& job);
  /// Moves the link up to now. True where something arrived.
  bool advance();
  Clock::time_point earliest(const Message& message) const;

 private:
  Seconds now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  bool crosses_link(int peer, const Wire::Arrival& arrival) const;
  void arrive(Message& message);
  Message& new_message();

  const Clock::time_point start_ = Clock::now();
  const int ranks_per_host_;
  const std::shared_ptr<Wire::Shared> shared_;
  std::vector<std::function<void(Wire::Arrival)>> takers_;  // by rank; empty where it left
  std::optional<LinkEmulator> emulator_;                    // its nodes are hosts
  std::deque<Message> messages_;
  std::vector<Message*> free_messages_;
};

class InProcessWire final : public Wire {
 public:
  InProcessWire(std::shared_ptr<Network> network, int rank);

  Traits traits() const override;
  int rank() const override { return rank_; }
  int ranks() const override { return network_->ranks(); }
  std::vector<int> host_names() const override;
  std::size_t wire_bytes(std::size_t payload_bytes) const override {
    constexpr std::size_t kHeadBytes = 32;  // of every message, as they are counted
    return kHeadBytes + payload_bytes;
  }

  void start(Events events) override { network_->enter(rank_, std::move(events.take)); }
  bool end(Parting parting) override;
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
