// A wire outside of the library, made only of <tersor/network.h>: queues between threads with
// delayed long messages. Long messages are read from the sender's memory at random later times, so
// ranks overtake each other. Senders receive the completion even later, as with MPI. The wire
// checks that no rank writes to memory during a send.
#pragma once

#include <tersor/forwarding.h>
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
  struct Letter {
    int from;
    int to;
    MessageHead head;
    Wire::Payload payload;
    std::vector<std::byte> came = {};  // the payload after the read
    bool read = false;

    bool is_long() const { return payload.bytes.size() > kShortBytes; }
  };
  static constexpr std::size_t kShortBytes = 250;

  void post(Letter letter) {
    const std::lock_guard lock(mutex_);
    if (gone_.contains(letter.to) || killed_.contains(letter.from)) return;
    if (letter.payload.job != nullptr) letter.payload.job->open = 1;
    letters_.push_back(std::move(letter));
  }

  /// Kills a rank. At most `letters` unread messages of the rank are still delivered to each rank.
  /// Then each rank detects the loss.
  void kill(int rank, std::size_t letters) {
    const std::lock_guard lock(mutex_);
    gone_.insert(rank);
    killed_.insert(rank);
    std::map<int, std::size_t> come;
    letters_.remove_if([&](const Letter& letter) {
      if (letter.read) return false;
      return letter.to == rank || (letter.from == rank && ++come[letter.to] > letters);
    });
  }

  /// Killed ranks without undelivered messages.
  std::vector<int> find_lost(int rank) {
    const std::lock_guard lock(mutex_);
    std::vector<int> lost;
    for (const int peer : killed_)
      if (peer != rank && !has_unread(peer, rank) && told_.emplace(rank, peer).second)
        lost.push_back(peer);
    return lost;
  }

  /// Reads some messages to a rank, in order per sender.
  std::vector<Letter> read_some(int rank) {
    const std::lock_guard lock(mutex_);
    std::vector<Letter> taken;
    if (killed_.contains(rank)) return taken;
    std::set<int> late;
    for (Letter& letter : letters_) {
      if (letter.read || letter.to != rank || late.contains(letter.from)) continue;
      if (letter.is_long() && random_() % 4 != 0) {
        late.insert(letter.from);
        continue;
      }
      letter.read = true;
      if (letter.is_long())
        letter.came.assign(letter.payload.bytes.begin(), letter.payload.bytes.end());
      taken.push_back({letter.from, rank, letter.head, {}, letter.came});
    }
    return taken;
  }

  /// Completes some of the rank's sends.
  std::vector<std::shared_ptr<Wire::Job>> acknowledge_some(int rank) {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Wire::Job>> jobs;
    letters_.remove_if([&](const Letter& letter) {
      if (!letter.read || letter.from != rank) return false;
      if (letter.is_long() && random_() % 16 != 0) return false;
      EXPECT_TRUE(equal_bytes(letter.payload.bytes, letter.came))
          << "rank " << rank << " wrote to what it was sending";
      if (letter.payload.job != nullptr) jobs.push_back(letter.payload.job);
      return true;
    });
    return jobs;
  }

  bool all_left(int rank) const {
    const std::lock_guard lock(mutex_);
    return std::none_of(letters_.begin(), letters_.end(), [&](const Letter& letter) {
      return letter.from == rank && letter.is_long();
    });
  }

  /// Short messages are still delivered, and senders still receive completions.
  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    gone_.insert(rank);
    letters_.remove_if([&](const Letter& letter) {
      const bool lost = letter.to == rank && !letter.read;
      return lost || (letter.from == rank && letter.is_long());
    });
  }

 private:
  bool has_unread(int from, int to) const {
    return std::ranges::any_of(letters_, [&](const Letter& letter) {
      return !letter.read && letter.from == from && letter.to == to;
    });
  }

  mutable std::mutex mutex_;
  std::mt19937 random_{12345};
  std::list<Letter> letters_;
  std::set<int> gone_;
  std::set<int> killed_;
  std::set<std::pair<int, int>> told_;  // (rank, lost rank) pairs already reported
};

class LateWire final : public Wire {
 public:
  LateWire(std::shared_ptr<LateNetwork> network, int rank, int ranks)
      : network_(std::move(network)), rank_(rank), ranks_(ranks) {}

  Traits traits() const override {
    return {
        .tells_losses = true, .most_unasked_bytes = 4000, .copied_bytes = LateNetwork::kShortBytes};
  }
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::vector<int> host_names() const override {
    std::vector<int> names(static_cast<std::size_t>(ranks_));
    std::iota(names.begin(), names.end(), 0);
    return names;
  }

  void start(Events events) override { events_ = std::move(events); }
  bool end(Parting) override {
    network_->leave(rank_);
    return true;
  }

  void send(int peer, MessageHead head, Payload payload) override {
    LateNetwork::Letter letter{rank_, peer, head, std::move(payload)};
    if (!letter.is_long()) {
      letter.came.assign(letter.payload.bytes.begin(), letter.payload.bytes.end());
      letter.payload = {.bytes = letter.came, .job = std::move(letter.payload.job)};
    }
    network_->post(std::move(letter));
  }

  bool poll() override {
    const auto letters = network_->read_some(rank_);
    for (const LateNetwork::Letter& letter : letters) {
      const Block block = take_block(letter.came.size());
      if (block) std::memcpy(block.writable().data(), letter.came.data(), letter.came.size());
      events_.take({.head = letter.head, .payload = block, .peer = letter.from});
    }
    const auto jobs = network_->acknowledge_some(rank_);
    for (const auto& job : jobs) {
      job->open = 0;
      if (job->done) job->done(*job);
    }
    const auto lost = network_->find_lost(rank_);
    for (const int peer : lost) events_.lost(peer, "the queues say so");
    return !letters.empty() || !jobs.empty() || !lost.empty();
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

/// Declares summed values as owned, so the transport sends from the values' memory.
class SumsInPlace final : public ForwardingTransport {
 public:
  explicit SumsInPlace(std::unique_ptr<Transport> inner) : ForwardingTransport(std::move(inner)) {}

  Handle sum(const Operation& operation, std::span<const ValueSpan> parts) override {
    return inner().sum(owned(operation), parts);
  }
  Handle maximum(const Operation& operation, std::span<const ValueSpan> parts) override {
    return inner().maximum(owned(operation), parts);
  }

 private:
  static Operation owned(Operation operation) {
    operation.keep_alive = std::make_shared<int>();
    return operation;
  }
};

/// Only for bodies waiting for all handles, because sent memory must stay valid.
inline Fabric in_place_fabric() {
  const auto run = [](int ranks, const Body& body) {
    auto transports = late_transports(ranks);
    for (auto& transport : transports)
      transport = std::make_unique<SumsInPlace>(std::move(transport));
    run_ranks(std::move(transports), body);
  };
  return {"LateSendsInPlace", run, sizeof(MessageHead)};
}

}  // namespace tersor::test
