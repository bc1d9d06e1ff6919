// What all channels of one process among others share: the wire, letterboxes, the first fault. One
// lock for all; whoever holds it moves what is under way for everybody.
#pragma once

#include <tersor/transport.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "comm/transport/host/bell.h"
#include "comm/transport/host/letterbox.h"
#include "comm/transport/processes/patience.h"
#include "comm/transport/processes/wire.h"

namespace tersor::processes {

/// A message that came, until it is delivered.
struct ProcessLetter : host::Letter {
  Arrival arrival;
  bool receiving = false;  ///< its payload is under way
};

/// One channel, as this process sees it. Made by the first message for it or by `join`.
struct Box {
  std::uint64_t id = 0;      ///< of the channel, the same on all its ranks
  std::vector<int> members;  ///< ranks of the world; empty until joined
  int rank = 0;
  bool whole = true;
  host::Letterbox letters;
  std::set<int> left;                      ///< ranks of the channel that are gone from it
  std::map<std::vector<int>, int> joined;  ///< how many channels it made, by members
  TransferCounters counters;
  Patience patience;  ///< of the thread that waits here
  host::Bell bell;    ///< rings when a batch is closed, on faults and on `wake`

  std::string name(int of) const {
    return host::rank_name(of, members[static_cast<std::size_t>(of)], whole);
  }
};

/// Whom does `peer` wait for, under a tag?
struct Question {
  int peer = 0;
  std::uint32_t tag = 0;
  std::chrono::milliseconds patience{0};
};

class World {
 public:
  /// Starts the wire.
  explicit World(std::unique_ptr<Wire> wire);
  /// Says goodbye and gives back what the network lets go of; the rest lives until the process
  /// ends.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Leaves all channels and ends the wire while transports still live: what they are asked for
  /// later, or wait for now, ends in TransportError. Call it once.
  void close();

  const WireTraits& traits() const { return traits_; }
  Box& everybody() { return *everybody_; }

  Box& join(Box& box, std::span<const int> members);
  void leave(Box& box);
  void post(Box& box, host::Batch& batch);
  void cancel(Box& box, host::Batch& batch);
  void progress();
  void wait(Box& box, std::uint32_t seen, Clock::time_point until);

  void raise(const std::string& cause);
  bool faulty() const { return faulty_.load(std::memory_order_acquire); }
  std::string fault() const;
  /// Asks along who waits for whom under the tag, up to one who waits for nobody or is silent.
  int culprit(Box& box, Question question);
  TransferCounters counters(const Box& box) const;
  std::vector<int> hosts(const Box& box) const;
  host::BlockPools& pools();

 private:
  struct State;  // what must live on where the network may still touch it

  void part();
  bool said_goodbye();
  void move();

  // With the lock held.
  Box& box_of(std::uint64_t id);
  Head head_of(const Box& box, Kind kind) const;
  bool poll();
  void take(Arrival arrival);
  void take_message(Arrival arrival);
  void take_leave(const Head& head, int peer);
  void answer(const Arrival& question);
  void send(Box& box, host::Batch& batch, const host::Outgoing& outgoing);
  void send_owned(Box& box, host::Batch& batch, const host::Outgoing& outgoing, const Head& head);
  void seek_letter(Box& box, host::Batch& batch, host::Incoming& slot);
  void paired(Box& box, ProcessLetter& letter);
  void receive_rest(Box& box, ProcessLetter& letter);
  void deliver(Box& box, ProcessLetter& letter);
  ProcessLetter& new_letter();
  bool gone(const Box& box, int peer) const;
  bool gone_from(const Box& box, int rank) const;
  void check_abandoned(Box& box);
  void raise_locked(const std::string& cause);
  void poison_locked(const std::string& cause);
  void announce();
  bool told() const;
  void tell_more();
  void tell_until(Clock::time_point until);
  int ask(Box& box, const Question& question);

  mutable std::mutex mutex_;
  std::unique_ptr<State> state_;
  Wire* wire_;  // the state's
  const WireTraits traits_;
  Box* everybody_ = nullptr;
  std::vector<int> host_names_;  // by rank of the world
  int present_ = 1;              // channels that are not left
  std::set<int> gone_;           // processes that left all channels, by rank of the world
  std::uint32_t questions_ = 0;
  std::map<std::uint32_t, int> answers_;
  std::string fault_;
  std::atomic<bool> faulty_{false};
  std::vector<std::shared_ptr<const Job>> told_;  // messages of the fault
  std::optional<bool> ended_;  // whether the wire gave all back; nothing before it was asked
  bool unannounced_ = false;   // the fault is not yet told: raised on a thread that is kept out
};

}  // namespace tersor::processes
