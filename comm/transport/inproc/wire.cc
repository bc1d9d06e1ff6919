#include "comm/transport/inproc/wire.h"

#include <tersor/error.h>

#include <chrono>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "comm/transport/host/head.h"
#include "comm/transport/host/shared_lock.h"
#include "comm/transport/inproc/link_emulator.h"

namespace tersor::inproc {
namespace {

std::size_t checked(int number, const std::string& name) {
  if (number < 1)
    throw InvalidArgumentError(name + " is " + std::to_string(number) + ": give at least 1");
  return static_cast<std::size_t>(number);
}

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
  Network(int ranks, const Link& link)
      : ranks_per_host_(static_cast<int>(checked(link.ranks_per_host, "per_host"))),
        receivers_(checked(ranks, "ranks")) {
    if (link.emulated()) emulator_.emplace(host_of(ranks - 1) + 1, link);
  }

  int ranks() const { return static_cast<int>(receivers_.size()); }
  int host_of(int rank) const { return rank / ranks_per_host_; }
  bool emulated() const { return emulator_.has_value(); }
  const std::shared_ptr<Wire::Shared>& shared() const { return shared_; }

  void attach(int rank, std::function<void(Wire::Arrival)> on_arrival) {
    const std::lock_guard lock(shared_->shared_lock);
    receivers_[static_cast<std::size_t>(rank)] = std::move(on_arrival);
  }

  void detach(int rank) {
    receivers_[static_cast<std::size_t>(rank)] = nullptr;
    for (LinkMessage& message : messages_)
      if (message.to == rank) message.job = nullptr;
  }

  void send(int peer, Wire::Arrival arrival, std::size_t bytes) {
    const auto& on_arrival = receivers_[static_cast<std::size_t>(peer)];
    if (!on_arrival) return;
    if (crosses_link(peer, arrival)) {
      LinkMessage& message = new_message();
      message.source = host_of(arrival.peer);
      message.destination = host_of(peer);
      message.bytes = bytes;
      message.to = peer;
      emulator_->post(message, now());
      arrival.whole = false;
      arrival.ticket = &message;
    }
    on_arrival(std::move(arrival));
  }

  void receive(LinkMessage& message, const std::shared_ptr<Wire::Job>& job) {
    message.job = job;
    if (message.arrived) arrive(message);
  }

  /// Advances the link to the current time. Returns true if a message arrived.
  bool advance() {
    bool progressed = false;
    if (emulator_)
      emulator_->advance(now(), [&](Packet& packet) {
        arrive(static_cast<LinkMessage&>(packet));
        progressed = true;
      });
    return progressed;
  }

  Clock::time_point earliest(const LinkMessage& message) const {
    const std::chrono::duration<double> since_start(emulator_->earliest_arrival(message));
    return start_ + std::chrono::ceil<Clock::duration>(since_start);
  }

 private:
  Seconds now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  // Payloads between hosts use the emulated link. Control messages of the transport do not.
  bool crosses_link(int peer, const Wire::Arrival& arrival) const {
    const host::MessageType type = host::head_of(arrival.head).type;
    return emulated() && host_of(peer) != host_of(arrival.peer) &&
           (type == host::MessageType::kMessage || type == host::MessageType::kBody);
  }

  void arrive(LinkMessage& message) {
    message.arrived = true;
    if (message.job == nullptr) return;
    const auto job = std::exchange(message.job, nullptr);
    free_messages_.push_back(&message);
    job->done(*job);
  }

  LinkMessage& new_message() {
    if (free_messages_.empty()) return messages_.emplace_back();
    LinkMessage& message = *free_messages_.back();
    free_messages_.pop_back();
    message = {};
    return message;
  }

  const Clock::time_point start_ = Clock::now();
  const int ranks_per_host_;
  const std::shared_ptr<Wire::Shared> shared_ = std::make_shared<Wire::Shared>();
  std::vector<std::function<void(Wire::Arrival)>> receivers_;  // by rank; empty after `detach`
  std::optional<LinkEmulator> emulator_;                       // link nodes are hosts
  std::deque<LinkMessage> messages_;
  std::vector<LinkMessage*> free_messages_;
};

class InProcessWire final : public Wire {
 public:
  InProcessWire(std::shared_ptr<Network> network, int rank)
      : Wire(network->shared()), network_(std::move(network)), rank_(rank) {}

  Traits traits() const override {
    return {.waiting = network_->emulated() ? Waiting::kSleepAndPoll : Waiting::kSleep,
            .reports_losses = true,
            .keeps_sent = true,
            .sends_in_place = false};
  }
  int rank() const override { return rank_; }
  int ranks() const override { return network_->ranks(); }
  std::vector<int> host_names() const override {
    std::vector<int> names;
    for (int rank = 0; rank < ranks(); ++rank) names.push_back(network_->host_of(rank));
    return names;
  }
  std::size_t wire_bytes(std::size_t payload_bytes) const override {
    constexpr std::size_t kHeadBytes = 32;  // counted header size of each message
    return kHeadBytes + payload_bytes;
  }

  void start(Events events) override { network_->attach(rank_, std::move(events.take)); }
  bool end(Shutdown) override {
    network_->detach(rank_);
    return true;
  }
  void send(int peer, MessageHead head, Payload payload) override {
    network_->send(peer, {.head = head, .payload = std::move(payload.block), .peer = rank_},
                   wire_bytes(payload.bytes.size()));
    if (payload.job != nullptr && payload.job->done) payload.job->done(*payload.job);
  }
  void receive_rest(const Arrival& arrival, ByteSpan, const std::shared_ptr<Job>& job) override {
    network_->receive(*static_cast<LinkMessage*>(arrival.ticket), job);
  }
  Clock::time_point earliest(const Arrival& arrival) const override {
    return network_->earliest(*static_cast<const LinkMessage*>(arrival.ticket));
  }
  bool poll() override { return network_->advance(); }
  bool quiet() const override { return true; }
  void pause() const override { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

 private:
  const std::shared_ptr<Network> network_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Wire>> make_wires(int ranks, const Link& link) {
  const auto network = std::make_shared<Network>(ranks, link);
  std::vector<std::unique_ptr<Wire>> wires;
  for (int rank = 0; rank < ranks; ++rank)
    wires.push_back(std::make_unique<InProcessWire>(network, rank));
  return wires;
}

}  // namespace tersor::inproc
