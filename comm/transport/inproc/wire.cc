#include "comm/transport/inproc/wire.h"

#include <tersor/error.h>

#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "comm/transport/host/head.h"
#include "comm/transport/host/shared_lock.h"

namespace tersor::inproc {
namespace {

std::size_t checked_ranks(int ranks) {
  if (ranks < 1)
    throw InvalidArgumentError("ranks is " + std::to_string(ranks) + ": give at least 1");
  return static_cast<std::size_t>(ranks);
}

int checked_ranks_per_host(const Link& link) {
  if (link.ranks_per_host < 1)
    throw InvalidArgumentError("per_host is " + std::to_string(link.ranks_per_host) +
                               ": give at least 1");
  return link.ranks_per_host;
}

}  // namespace

Network::Network(int ranks, const Link& link)
    : ranks_per_host_(checked_ranks_per_host(link)),
      shared_(std::make_shared<Wire::Shared>()),
      receivers_(checked_ranks(ranks)) {
  if (link.emulated()) emulator_.emplace(host_of(ranks - 1) + 1, link);
}

void Network::attach(int rank, std::function<void(Wire::Arrival)> on_arrival) {
  const std::lock_guard lock(shared_->shared_lock);
  receivers_[static_cast<std::size_t>(rank)] = std::move(on_arrival);
}

void Network::detach(int rank) {
  receivers_[static_cast<std::size_t>(rank)] = nullptr;
  for (LinkMessage& message : messages_)
    if (message.to == rank) message.job = nullptr;
}

// Payloads between hosts use the emulated link. Control messages of the transport do not.
bool Network::crosses_link(int peer, const Wire::Arrival& arrival) const {
  const host::MessageType type = host::head_of(arrival.head).type;
  return emulated() && host_of(peer) != host_of(arrival.peer) &&
         (type == host::MessageType::kMessage || type == host::MessageType::kBody);
}

void Network::send(int peer, Wire::Arrival arrival, std::size_t bytes) {
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

void Network::receive(LinkMessage& message, const std::shared_ptr<Wire::Job>& job) {
  message.job = job;
  if (message.arrived) arrive(message);
}

void Network::arrive(LinkMessage& message) {
  message.arrived = true;
  if (message.job == nullptr) return;
  const auto job = std::exchange(message.job, nullptr);
  free_messages_.push_back(&message);
  job->done(*job);
}

bool Network::advance() {
  bool progressed = false;
  if (emulator_)
    emulator_->advance(now(), [&](Packet& packet) {
      arrive(static_cast<LinkMessage&>(packet));
      progressed = true;
    });
  return progressed;
}

Clock::time_point Network::earliest(const LinkMessage& message) const {
  const std::chrono::duration<double> since_start(emulator_->earliest_arrival(message));
  return start_ + std::chrono::ceil<Clock::duration>(since_start);
}

LinkMessage& Network::new_message() {
  if (free_messages_.empty()) return messages_.emplace_back();
  LinkMessage& message = *free_messages_.back();
  free_messages_.pop_back();
  message = {};
  return message;
}

InProcessWire::InProcessWire(std::shared_ptr<Network> network, int rank)
    : Wire(network->shared()), network_(std::move(network)), rank_(rank) {}

Wire::Traits InProcessWire::traits() const {
  return {.waiting = network_->emulated() ? Waiting::kSleepAndPoll : Waiting::kSleep,
          .reports_losses = true,
          .keeps_sent = true,
          .sends_in_place = false};
}

std::vector<int> InProcessWire::host_names() const {
  std::vector<int> names;
  for (int rank = 0; rank < ranks(); ++rank) names.push_back(network_->host_of(rank));
  return names;
}

bool InProcessWire::end(Shutdown) {
  network_->detach(rank_);
  return true;
}

void InProcessWire::send(int peer, MessageHead head, Payload payload) {
  network_->send(peer, {.head = head, .payload = std::move(payload.block), .peer = rank_},
                 wire_bytes(payload.bytes.size()));
  if (payload.job != nullptr && payload.job->done) payload.job->done(*payload.job);
}

void InProcessWire::receive_rest(const Arrival& arrival, ByteSpan,
                                 const std::shared_ptr<Job>& job) {
  network_->receive(*static_cast<LinkMessage*>(arrival.ticket), job);
}

Clock::time_point InProcessWire::earliest(const Arrival& arrival) const {
  return network_->earliest(*static_cast<const LinkMessage*>(arrival.ticket));
}

void InProcessWire::pause() const { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

}  // namespace tersor::inproc
