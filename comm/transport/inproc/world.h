// The state that all ranks of one process share: groups of mailboxes, the emulated link, and the
// first fault. One lock for all; whoever holds it also moves the link up to now.
#pragma once

#include <tersor/inprocess.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "comm/transport/host/bell.h"
#include "comm/transport/host/letterbox.h"
#include "comm/transport/host/postman.h"
#include "comm/transport/inproc/link_emulator.h"

namespace tersor::inproc {

struct Group;
struct Mailbox;

/// A message from its sending until it is delivered. Its payload is a copy of the sender's bytes.
struct Message : Packet, host::Letter {
  Mailbox* to = nullptr;
};

/// Where one rank of one group waits.
struct Mailbox {
  enum class Presence { kExpected, kHere, kLeft };

  Group* group = nullptr;
  int rank = 0;  // in the group
  Presence presence = Presence::kExpected;
  host::Letterbox letters;
  Seconds asleep_until = -kNever;          // when its thread looks again by itself
  std::atomic<Seconds> absent_since = 0;   // when its thread last called; kNever while it waits
  std::map<std::vector<int>, int> joined;  // how many groups it made, by members
  TransferCounters counters;
  host::Bell bell;  // rings when a batch is closed, on faults and on `wake`
};

/// Ranks with messages of their own: a channel, or a part of one.
struct Group {
  Group(std::vector<int> all_members, bool whole_world);
  std::string name(int rank) const {
    return host::rank_name(rank, members[static_cast<std::size_t>(rank)], whole);
  }

  std::vector<int> members;  // ranks of the world
  bool whole;
  std::deque<Mailbox> mailboxes;  // by rank in the group
};

class World {
 public:
  World(int ranks, const Link& link);

  int ranks() const { return static_cast<int>(claimed_.size()); }
  std::vector<int> hosts(const Group& group) const;
  host::BlockPools& pools() { return pools_; }

  /// The mailbox of a rank in the group of all. Throws InvalidArgument the second time.
  Mailbox& claim(int rank);
  Mailbox& join(Mailbox& box, std::span<const int> members);
  void leave(Mailbox& box);

  /// `payloads` are copies of the batch's outgoing ones.
  void post(Mailbox& box, host::Batch& batch, std::span<host::Block> payloads);
  void cancel(Mailbox& box, host::Batch& batch);
  void progress(Mailbox& box);
  void wait(Mailbox& box, std::uint32_t seen, Clock::time_point until);

  void raise(const std::string& cause);
  bool faulty() const { return faulty_.load(std::memory_order_acquire); }
  std::string fault() const;
  int culprit(const Mailbox& box, int peer, std::uint32_t tag) const;
  TransferCounters counters(const Mailbox& box) const;

 private:
  /// Bells to ring once the lock is released. Declared before the lock.
  class Rings {
   public:
    ~Rings();
    void add(host::Bell& bell);

   private:
    std::array<host::Bell*, 32> bells_;
    std::size_t count_ = 0;
  };

  int host_of(int world_rank) const { return world_rank / ranks_per_host_; }

  // All below: with the lock held.
  Seconds now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  Clock::time_point time_of(Seconds seconds) const;
  void enter(Mailbox& box);
  bool gone(const Group& group, int rank) const;
  bool gone(const Mailbox& box, int peer) const;
  void check_abandoned(Mailbox& box, Rings& rings);
  void raise_locked(std::string cause, Rings& rings);
  int most_absent(const Mailbox& box) const;

  void advance(Rings& rings);
  void send(Mailbox& box, const host::Batch& batch, const host::Outgoing& outgoing,
            host::Block& payload, Rings& rings);
  void seek_message(Mailbox& box, host::Batch& batch, host::Incoming& slot, Rings& rings);
  void arrive(Message& message, Rings& rings);
  void deliver(Message& message, Rings& rings);
  void wake_for(Mailbox& box, const host::Batch& batch, Rings& rings);
  Seconds completion(const host::Batch& batch) const;
  Seconds next_completion(const Mailbox& box) const;
  Message& take_message();
  void recycle(Message& message);

  using GroupKey = std::tuple<const Group*, std::vector<int>, int>;

  const Clock::time_point start_ = Clock::now();
  host::BlockPools pools_;
  mutable std::mutex mutex_;
  const int ranks_per_host_;
  std::optional<LinkEmulator> emulator_;  // its nodes are hosts
  Group everybody_;
  std::map<GroupKey, std::unique_ptr<Group>> groups_;
  std::vector<bool> claimed_;    // by rank of the world
  std::vector<int> transports_;  // by rank of the world: those not yet gone
  std::deque<Message> messages_;
  std::vector<Message*> free_messages_;
  std::string fault_;
  std::atomic<bool> faulty_{false};
};

}  // namespace tersor::inproc
