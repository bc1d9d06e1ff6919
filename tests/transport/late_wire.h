// A wire outside of the library, made only of <tersor/network.h>: queues between threads with
// delayed long messages. Long messages are read from the sender's memory at random later times, so
// ranks overtake each other. Senders receive the completion even later, as with MPI. The wire
// checks that no rank writes to memory during a send.
#pragma once

#include <tersor/network.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>

#include "tests/transport/ranks.h"

namespace tersor::test {

/// State shared by all ranks.
class LateNetwork {
 public:
  struct SentMessage {
    int from;
    int to;
    MessageHead head;
    Wire::Payload payload;
    std::vector<std::byte> came = {};  // the payload after the read
    bool read = false;

    bool is_long() const { return payload.bytes.size() > kShortBytes; }
  };
  static constexpr std::size_t kShortBytes = 250;

  explicit LateNetwork(bool borrows = false) : borrows_(borrows) {}

  bool borrows() const { return borrows_; }

  void post(SentMessage message) {
    const std::lock_guard lock(mutex_);
    if (gone_.contains(message.to) || killed_.contains(message.from)) return;
    if (message.payload.job != nullptr) message.payload.job->open = 1;
    messages_.push_back(std::move(message));
  }

  /// Copies the payload of a job, which may be freed or overwritten afterwards.
  void keep(const Wire::Job* job, const std::function<Block(std::size_t bytes)>& make_block) {
    const std::lock_guard lock(mutex_);
    for (SentMessage& message : messages_) {
      Wire::Payload& payload = message.payload;
      if (payload.job.get() != job || payload.block || !message.is_long()) continue;
      payload.block = make_block(payload.bytes.size());
      std::memcpy(payload.block.writable().data(), payload.bytes.data(), payload.bytes.size());
      payload.bytes = payload.block.bytes();
    }
  }

  /// Kills a rank. At most `messages` unread messages of the rank are still delivered to each rank.
  /// Then each rank detects the loss.
  void kill(int rank, std::size_t messages) {
    const std::lock_guard lock(mutex_);
    gone_.insert(rank);
    killed_.insert(rank);
    std::map<int, std::size_t> come;
    messages_.remove_if([&](const SentMessage& message) {
      if (message.read) return false;
      return message.to == rank || (message.from == rank && ++come[message.to] > messages);
    });
  }

  /// Killed ranks without undelivered messages.
  std::vector<int> find_lost(int rank) {
    const std::lock_guard lock(mutex_);
    std::vector<int> lost;
    for (const int peer : killed_)
      if (peer != rank && !has_unread(peer, rank) && reported_.emplace(rank, peer).second)
        lost.push_back(peer);
    return lost;
  }

  /// Reads some messages to a rank, in order per sender.
  std::vector<SentMessage> read_some(int rank) {
    const std::lock_guard lock(mutex_);
    std::vector<SentMessage> taken;
    if (killed_.contains(rank)) return taken;
    std::set<int> late;
    for (SentMessage& message : messages_) {
      if (message.read || message.to != rank || late.contains(message.from)) continue;
      if (message.is_long() && random_() % 4 != 0) {
        late.insert(message.from);
        continue;
      }
      message.read = true;
      if (message.is_long())
        message.came.assign(message.payload.bytes.begin(), message.payload.bytes.end());
      taken.push_back({message.from, rank, message.head, {}, message.came});
    }
    return taken;
  }

  /// Completes some of the rank's sends.
  std::vector<std::shared_ptr<Wire::Job>> acknowledge_some(int rank) {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Wire::Job>> jobs;
    messages_.remove_if([&](const SentMessage& message) {
      if (!message.read || message.from != rank) return false;
      if (message.is_long() && random_() % 16 != 0) return false;
      EXPECT_TRUE(equal_bytes(message.payload.bytes, message.came))
          << "rank " << rank << " wrote to what it was sending";
      if (message.payload.job != nullptr) jobs.push_back(message.payload.job);
      return true;
    });
    return jobs;
  }

  bool all_left(int rank) const {
    const std::lock_guard lock(mutex_);
    return std::none_of(messages_.begin(), messages_.end(), [&](const SentMessage& message) {
      return message.from == rank && message.is_long();
    });
  }

  /// Short messages are still delivered, and senders still receive completions.
  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    gone_.insert(rank);
    messages_.remove_if([&](const SentMessage& message) {
      const bool lost = message.to == rank && !message.read;
      return lost || (message.from == rank && message.is_long());
    });
  }

 private:
  bool has_unread(int from, int to) const {
    return std::ranges::any_of(messages_, [&](const SentMessage& message) {
      return !message.read && message.from == from && message.to == to;
    });
  }

  const bool borrows_;
  mutable std::mutex mutex_;
  std::mt19937 random_{12345};
  std::list<SentMessage> messages_;
  std::set<int> gone_;
  std::set<int> killed_;
  std::set<std::pair<int, int>> reported_;  // (rank, lost rank) pairs already reported
};

class LateWire final : public Wire {
 public:
  LateWire(std::shared_ptr<LateNetwork> network, int rank, int ranks)
      : network_(std::move(network)), rank_(rank), ranks_(ranks) {}

  Traits traits() const override {
    return {.reports_losses = true,
            .borrows = network_->borrows(),
            .most_eager_bytes = 4000,
            .copied_bytes = LateNetwork::kShortBytes};
  }
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::vector<int> host_names() const override {
    std::vector<int> names(static_cast<std::size_t>(ranks_));
    std::iota(names.begin(), names.end(), 0);
    return names;
  }

  void start(Events events) override { events_ = std::move(events); }
  bool end(Shutdown) override {
    network_->leave(rank_);
    return true;
  }

  void send(int peer, MessageHead head, Payload payload) override {
    LateNetwork::SentMessage message{rank_, peer, head, std::move(payload)};
    if (!message.is_long()) {
      message.came.assign(message.payload.bytes.begin(), message.payload.bytes.end());
      message.payload = {.bytes = message.came, .job = std::move(message.payload.job)};
    }
    network_->post(std::move(message));
  }

  void keep(int, const Job* job) override {
    network_->keep(job, [this](std::size_t bytes) { return take_block(bytes); });
  }

  bool poll() override {
    const auto messages = network_->read_some(rank_);
    for (const LateNetwork::SentMessage& message : messages) {
      const Block block = take_block(message.came.size());
      if (block) std::memcpy(block.writable().data(), message.came.data(), message.came.size());
      events_.take({.head = message.head, .payload = block, .peer = message.from});
    }
    const auto jobs = network_->acknowledge_some(rank_);
    for (const auto& job : jobs) {
      job->open = 0;
      if (job->done) job->done(*job);
    }
    const auto lost = network_->find_lost(rank_);
    for (const int peer : lost) events_.lost(peer, "the queues say so");
    return !messages.empty() || !jobs.empty() || !lost.empty();
  }
  bool quiet() const override { return network_->all_left(rank_); }

 private:
  const std::shared_ptr<LateNetwork> network_;
  const int rank_;
  const int ranks_;
  Events events_;
};

/// The transports of all ranks.
inline std::vector<std::unique_ptr<Transport>> late_transports(
    int ranks, const std::shared_ptr<LateNetwork>& network = std::make_shared<LateNetwork>()) {
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank)
    transports.push_back(make_transport(std::make_unique<LateWire>(network, rank, ranks)));
  return transports;
}

inline Fabric late_fabric() {
  const auto run = [](int ranks, const Body& body) { run_ranks(late_transports(ranks), body); };
  return {"LateQueues", run, sizeof(MessageHead)};
}

/// Sums are sent from the values' memory.
inline Fabric in_place_fabric() {
  const auto run = [](int ranks, const Body& body) {
    run_ranks(late_transports(ranks, std::make_shared<LateNetwork>(true)), body);
  };
  return {"LateSendsInPlace", run, sizeof(MessageHead)};
}

}  // namespace tersor::test
