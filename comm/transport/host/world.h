// What all channels of one rank share: its wire, letterboxes, the first fault. One lock for all;
// whoever holds it moves what is under way for everybody. Here stand the rules by which nobody
// waits for ever, whatever the network: a fault is told to all, who leaves is told from who is
// late, and whom to name is asked of those who are waited for.
#pragma once

#include <tersor/network.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
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

/// Channels that end together: a fault of one is a fault of all. Those of all ranks and what is
/// made of them; those of a split of a lifeline. On lifelines operations end alone, and nothing but
/// the end of this rank's own wire ends all.
struct Family {
  enum class Kind { kOrdinary, kLifeline };

  const std::uint64_t id;  ///< of its first channel, the same on all its ranks
  const Kind kind;
  std::vector<int> members;  ///< ranks of the world, ascending; none until one here has joined it
  std::string fault;
  std::atomic<bool> faulty{false};

  Family(std::uint64_t channel, Kind what) : id(channel), kind(what) {}
  bool has(int peer) const { return std::ranges::binary_search(members, peer); }
};

/// One channel, as this rank sees it. Made by the first message for it or by `join`.
struct Box {
  static constexpr Clock::time_point kAwake = Clock::time_point::min();

  const std::uint64_t id;          ///< of the channel, the same on all its ranks
  std::vector<int> members;        ///< ranks of the world; empty until joined
  std::shared_ptr<Family> family;  ///< none until joined, or until a fault of it is heard of
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
  std::string name(int of) const { return rank_name(of, member(of), whole); }
  int member(int of) const { return members[static_cast<std::size_t>(of)]; }
  bool faulty() const {
    return family != nullptr && family->faulty.load(std::memory_order_acquire);
  }
  bool is_lifeline() const { return family != nullptr && family->kind == Family::Kind::kLifeline; }
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

  /// Of another kind than the box: the first of a family of its own.
  Box& join(Box& box, std::span<const int> members, Family::Kind kind);
  void leave(Box& box);
  /// Nobody here uses a box any more, which was left before: it goes as soon as all have left it.
  void release(Box& box);
  void post(Box& box, Batch& batch);
  void cancel(Box& box, Batch& batch);
  /// On a lifeline: ends one that is not closed yet, alone.
  void end_late(Box& box, Batch& batch, std::exception_ptr error);
  void progress(Box& box);
  void wait(Box& box, std::uint32_t seen, Clock::time_point until);

  /// Of the box's family, which is no lifeline's.
  void raise(Box& box, const std::string& cause);
  std::string fault(const Box& box) const;
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
  struct Telling {
    int peer;
    std::shared_ptr<const Wire::Job> job;
  };
  struct Loss {
    std::string cause;
    Clock::time_point told_at;  // to ordinary families
    bool told = false;
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
  void part_with(int peer);
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
  void drop_announced(int peer);
  void ask_for(Letter& letter);
  void take_body(const Head& head, Wire::Arrival arrival);
  void make_room(Letter& letter);
  void seek_letter(Box& box, Batch& batch, Incoming& incoming);
  bool is_sender(const Box& box, int from, int peer) const;
  void refuse(int peer);
  void paired(Box& box, Letter& letter);
  void fail_misfit(Box& box, Letter& letter);
  void take_back(Box& box, Batch& batch);
  static bool is_over(const Box& box, const Batch& batch);
  void end(Box& box, Batch& batch, std::exception_ptr error);
  void receive_rest(Letter& letter);
  void came(Letter& letter);
  void deliver(Box& box, Letter& letter);
  Letter& new_letter();
  void drop(Letter& letter);
  void drop_unclaimed(Box& box);
  void wake_for(Box& box, const Batch& batch);
  Clock::time_point completion(const Batch& batch) const;
  bool gone(const Box& box, int peer) const;
  bool gone_from(const Box& box, int rank) const;
  void check_abandoned(Box& box);
  void abandon(Box& box, Batch& batch, int who);
  std::vector<std::shared_ptr<Family>> families() const;
  Family& family_of(std::uint64_t id);
  void raise_locked(Family& family, const std::string& cause);
  void raise_all(const std::string& cause);
  void poison(Family& family, const std::string& cause);
  void lose(int peer, const std::string& cause);
  void end_sends(int peer);
  bool tell_losses();
  void ring_all();
  void announce(const Family& family);
  void hear_fault(const Head& head, const Wire::Arrival& arrival);
  void tell_fault(const Family& family, int peer, const Block& text);
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
  std::vector<int> host_names_;  // by rank of the world
  int present_ = 1;              // channels that are not left
  std::set<int> gone_;           // who left all channels, by rank of the world
  std::map<int, Loss> lost_;     // who went without a word, likewise
  std::atomic<Clock::time_point> next_loss_{Clock::time_point::max()};  // when it is told
  std::map<const Wire::Job*, Outstanding> sends_;  // that batches count, under way
  std::vector<Flow> flows_;                        // by rank of the world
  std::map<Number, Held> held_;                    // until the peer asks for it
  std::map<Number, Letter*> coming_;               // whose body has not come
  std::uint32_t asked_ = 0;                        // questions of our own
  std::map<std::uint32_t, Awaited> answers_;       // as they came, by question
  std::vector<std::pair<Head, int>> questions_;    // of others, by rank of the world
  std::atomic<bool> questioned_{false};            // there are some, and nobody was here
  std::atomic<int> waiting_{0};                    // threads
  std::vector<Telling> told_;                      // messages of faults
  bool deaf_ = false;       // all families are faulty: nothing that comes is wanted
  bool lifelines_ = false;  // there are some, or were
  bool closed_ = false;
  std::optional<bool> ended_;  // whether the wire gave all back; nothing before it was asked
  // The fault is not yet told: raised on a thread that is kept out, where there are no lifelines.
  bool unannounced_ = false;
};

}  // namespace tersor::host
