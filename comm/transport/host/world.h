// What all channels of one rank share: its wire, letterboxes, the first fault. One lock for all;
// whoever holds it moves what is under way for everybody. Here stand the rules by which nobody
// waits for ever, whatever the network: a fault is told to all, who leaves is told from who is
// late, and whom to name is asked of those who are waited for.
#pragma once

#include <tersor/network.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "comm/transport/host/flow.h"
#include "comm/transport/host/gate.h"
#include "comm/transport/host/head.h"
#include "comm/transport/host/letterbox.h"
#include "comm/transport/host/patience.h"

namespace tersor::host {

struct Box;

/// One channel, as this rank sees it. Made by the first message for it or by `join`.
struct Box {
  static constexpr Clock::time_point kAwake = Clock::time_point::min();

  const std::uint64_t id;    ///< of the channel, the same on all its ranks
  std::vector<int> members;  ///< ranks of the world; empty until joined
  int rank = 0;
  bool whole = true;
  bool released = false;  ///< nobody here uses it any more
  Letterbox letters;
  std::set<int> left;                      ///< ranks of the world that are gone from it
  std::map<std::vector<int>, int> joined;  ///< how many channels it made, by members
  TransferCounters counters;
  Patience patience;                        ///< of the thread that waits here
  Clock::time_point asleep_until = kAwake;  ///< when that thread looks again by itself
  /// Rings when a batch is closed, on faults and questions, and on `wake`.
  Bell& bell;

  Box(std::uint64_t number, Bell& own) : id(number), bell(own) {}
  std::string name(int of) const {
    return rank_name(of, members[static_cast<std::size_t>(of)], whole);
  }
};

/// Whom do others wait for, in the call of this name and tag?
struct Question {
  std::string_view name;
  std::uint32_t tag = 0;
  std::chrono::milliseconds patience{0};  ///< for an answer
};

/// Who holds others up: they are silent, or wait for nobody; or how the call of one differs.
struct Culprits {
  std::vector<int> ranks = {};
  std::string difference = {};
};

/// Counts a thread that waits, for as long as this lives.
class Waiting {
 public:
  explicit Waiting(std::atomic<int>& threads) : threads_(threads) { ++threads_; }
  ~Waiting() { --threads_; }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  std::atomic<int>& threads_;
};

class World {
 public:
  /// Starts the wire.
  explicit World(std::unique_ptr<Wire> wire);
  /// Says goodbye and gives back what the network lets go of; the rest lives until the process
  /// ends.
  ~World();

  /// Leaves all channels and ends the wire while transports still live: what they are asked for
  /// later, or wait for now, ends in TransportError. For wires that do not move alone.
  void close();

  const Wire::Traits& traits() const { return traits_; }
  Box& everybody() { return *everybody_; }
  BlockPools& pools() { return wire_->shared().pools; }

  Box& join(Box& box, std::span<const int> members);
  void leave(Box& box);
  /// Nobody here uses a box any more, which was left before: it goes as soon as all have left it.
  void release(Box& box);
  void post(Box& box, Batch& batch);
  void cancel(Box& box, Batch& batch);
  void progress(Box& box);
  void wait(Box& box, std::uint32_t seen, Clock::time_point until);

  void raise(const std::string& cause);
  bool faulty() const { return faulty_.load(std::memory_order_acquire); }
  std::string fault() const;
  /// Asks those who are late, and along who waits for whom, up to all who wait for nobody or are
  /// silent, or one who calls something else. Those who are late where all wait for each other.
  Culprits culprits(Box& box, const Question& question, std::span<const int> late);
  std::vector<int> unsent(const Batch& batch) const;
  TransferCounters counters(const Box& box) const;
  std::vector<int> hosts(const Box& box) const;

 private:
  /// What must live on where the network may still write to it or read from it.
  struct State {
    std::unique_ptr<Wire> wire;  // goes last: it holds the pools
    std::deque<Letter> letters;
    std::vector<Letter*> free_letters;
    std::map<std::uint64_t, std::unique_ptr<Box>> boxes;
  };
  struct Outstanding {
    Batch* batch;
    Box* box;
    int peer;  // in the box
  };
  struct Held {
    std::uint64_t channel;
    Wire::Payload payload;
  };
  using Number = std::pair<int, std::uint32_t>;  // of a message that was announced, and its peer

  Wire::Parting parting();
  bool said_goodbye();
  void pack(Batch& batch);
  Block in_block(ConstByteSpan bytes);
  void pause() const;
  void poll_until(Box& box, std::uint32_t seen, Clock::time_point until);
  Clock::time_point fall_asleep(Box& box);

  // With the lock held.
  Box& box_of(std::uint64_t id);
  Awaited awaited(const Box& box, std::uint32_t tag) const;
  void drop_if_over(Box& box);
  Head head_in(const Box& box, Kind kind) const;
  bool poll();
  bool poll_wire();
  void take(Wire::Arrival arrival);
  void take_message(const Head& head, Wire::Arrival arrival);
  void take_leave(const Head& head, int peer);
  void take_question(const Head& head, int peer);
  void take_answer(const Head& head, ConstByteSpan ranks);
  void answer_questions();
  void take_last(Box& box, const Batch& batch);
  void check_stray(Box& box, const Letter& letter);
  void send(int peer, Head head, Wire::Payload payload = {});
  void send(Box& box, Batch& batch, Outgoing& outgoing);
  bool must_leave(const Batch& batch) const;
  std::shared_ptr<Wire::Job> count_send(Box& box, Batch& batch, int peer);
  Flow& flow(int peer) { return flows_[static_cast<std::size_t>(peer)]; }
  const Flow& flow(int peer) const { return flows_[static_cast<std::size_t>(peer)]; }
  void check_room(const Box& box, const Batch& batch) const;
  void hold(int peer, Head head, Wire::Payload payload);
  void take_request(const Head& head, int peer);
  void drop_held(int peer, const Box* box);
  void check_announced(int peer);
  void ask_for(Letter& letter);
  void take_body(const Head& head, Wire::Arrival arrival);
  void make_room(Letter& letter);
  void seek_letter(Box& box, Batch& batch, Incoming& incoming);
  bool is_sender(const Box& box, int from, int peer) const;
  void refuse(int peer);
  void paired(Box& box, Letter& letter);
  void receive_rest(Letter& letter);
  void came(Letter& letter);
  void deliver(Box& box, Letter& letter);
  Letter& new_letter();
  void drop(Letter& letter);
  void wake_for(Box& box, const Batch& batch);
  Clock::time_point completion(const Batch& batch) const;
  bool gone(const Box& box, int peer) const;
  bool gone_from(const Box& box, int rank) const;
  void check_abandoned(Box& box);
  void raise_left(std::string_view operation, const Box& box, int who);
  void raise_locked(const std::string& cause);
  void poison_locked(const std::string& cause);
  void ring_all();
  void announce();
  void hear_fault(const Wire::Arrival& arrival);
  void tell_fault(int peer, const Block& text);
  bool told() const;
  void tell_more();
  void tell_until(Clock::time_point until);
  class Inquiry;
  std::optional<std::uint32_t> put(Box& box, int rank, std::uint32_t tag);

  std::unique_ptr<State> state_;
  Wire* wire_;  // the state's
  Gate& gate_;  // the wire's
  const Wire::Traits traits_;
  Box* everybody_ = nullptr;
  std::vector<int> host_names_;                    // by rank of the world
  int present_ = 1;                                // channels that are not left
  std::set<int> gone_;                             // who left all channels, by rank of the world
  std::map<const Wire::Job*, Outstanding> sends_;  // that batches count, under way
  std::vector<Flow> flows_;                        // by rank of the world
  std::map<Number, Held> held_;                    // until the peer asks for it
  std::map<Number, Letter*> coming_;               // whose body has not come
  std::uint32_t asked_ = 0;                        // questions of our own
  std::map<std::uint32_t, Awaited> answers_;       // as they came, by question
  std::vector<std::pair<Head, int>> questions_;    // of others, by rank of the world
  std::atomic<bool> questioned_{false};            // there are some, and nobody was here
  std::atomic<int> waiting_{0};                    // threads
  std::string fault_;
  std::atomic<bool> faulty_{false};
  std::vector<std::shared_ptr<const Wire::Job>> told_;  // messages of the fault
  bool closed_ = false;
  std::optional<bool> ended_;  // whether the wire gave all back; nothing before it was asked
  bool unannounced_ = false;   // the fault is not yet told: raised on a thread that is kept out
};

}  // namespace tersor::host
