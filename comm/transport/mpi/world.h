// What all channels of one process on one communicator share: the wire, letterboxes, the first
// fault. One lock for all; whoever holds it moves what is under way for everybody.
#pragma once

#include <tersor/transport.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport/host/bell.h"
#include "comm/transport/host/letterbox.h"
#include "comm/transport/mpi/patience.h"
#include "comm/transport/mpi/wire.h"

namespace tersor::mpi {

/// A message that came, until it is delivered.
struct MpiLetter : host::Letter {
  Arrival arrival;
  bool receiving = false;  ///< its payload is under way
};

/// One channel, as this process sees it. Made by the first message for it or by `join`.
struct Box {
  std::uint64_t id = 0;      ///< of the channel, the same on all its ranks
  std::vector<int> members;  ///< ranks of the communicator; empty until joined
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
  /// Duplicates the communicator.
  explicit World(MPI_Comm communicator);
  /// Says goodbye and gives back what MPI lets go of; the rest lives until the process ends.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Whether payloads that do not travel with their head may lie on a device.
  bool takes_device_memory() const { return takes_device_memory_; }
  bool any_thread() const { return thread_level_ == MPI_THREAD_MULTIPLE; }
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
  struct State;  // what must live on where MPI still may touch it

  void note_use();
  bool right_thread() const;
  void check_thread();

  bool said_goodbye();

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
  void paired(Box& box, MpiLetter& letter);
  void receive_rest(Box& box, MpiLetter& letter);
  void deliver(Box& box, MpiLetter& letter);
  MpiLetter& new_letter();
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

  std::atomic<std::thread::id> user_ = std::this_thread::get_id();
  int thread_level_;
  bool takes_device_memory_;
  mutable std::mutex mutex_;
  std::unique_ptr<State> state_;
  Wire* wire_ = nullptr;  // the state's
  Box* everybody_ = nullptr;
  std::vector<int> host_names_;  // by rank of the communicator: the lowest rank on its host
  int present_ = 0;              // channels that are not left
  std::set<int> gone_;           // processes that left all channels, by rank of the communicator
  std::uint32_t questions_ = 0;
  std::map<std::uint32_t, int> answers_;
  std::string fault_;
  std::atomic<bool> faulty_{false};
  std::vector<std::shared_ptr<const Job>> told_;  // messages of the fault
  bool unannounced_ = false;  // the fault is not yet told: raised on a thread that MPI keeps out
};

}  // namespace tersor::mpi
