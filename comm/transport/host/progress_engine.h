// The progress engine of a rank: the wire, the match queues of all channels and the first fault. A
// single lock protects everything, and the lock holder makes progress for all channels. No rank
// waits forever, on any network: the engine announces each fault to all ranks and distinguishes
// departed ranks from late ranks. To find the rank to blame, the engine asks the awaited ranks.
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

#include "comm/transport/host/agreement_cache.h"
#include "comm/transport/host/backoff_policy.h"
#include "comm/transport/host/flow.h"
#include "comm/transport/host/head.h"
#include "comm/transport/host/match_queue.h"
#include "comm/transport/host/shared_lock.h"

namespace tersor::host {

/// Why a transport was aborted.
struct Fault {
  Fault(std::string cause, std::vector<Difference> differences = {})
      : text(std::move(cause)), disagreement(std::move(differences)) {}

  std::string text;
  std::vector<Difference> disagreement;
};

std::vector<std::byte> to_bytes(const Fault& fault);
/// Throws WireError for bytes that `to_bytes` does not write.
Fault parse_fault(const Wire::Arrival& arrival);

/// A fault domain: a set of channels failing together. The channels of all ranks and their
/// descendants form a domain; the splits of an isolated channel form others. On an isolated
/// channel, each operation fails alone, and only the end of this rank's own wire fails all of them.
struct FaultDomain {
  enum class Kind { kOrdinary, kIsolated };

  const std::uint64_t id;  ///< id of the domain's first channel, equal on all ranks of the domain
  const Kind kind;
  /// World ranks, ascending; empty until this rank joins a channel of the domain.
  std::vector<int> members;
  Fault fault{""};
  std::atomic<bool> faulty{false};

  FaultDomain(std::uint64_t channel, Kind what) : id(channel), kind(what) {}
  bool has(int peer) const { return std::ranges::binary_search(members, peer); }
};

/// The state of a channel on this rank. Created by `join` or by the first message for the channel.
struct ChannelState {
  static constexpr Clock::time_point kAwake = Clock::time_point::min();

  const std::uint64_t id;    ///< of the channel, equal on all ranks
  std::vector<int> members;  ///< world ranks; empty until joined
  std::shared_ptr<FaultDomain>
      domain;  ///< null until joined or until a fault of the domain is received
  int rank = 0;
  bool whole = true;
  bool released = false;  ///< True if this rank no longer uses the channel
  MatchQueue match_queue;
  std::set<int> left;  ///< world ranks gone from the channel
  /// Number of channels made from this channel, by members.
  std::map<std::vector<int>, int> joined;
  TransferCounters counters;
  AgreementCache agreements;
  BackoffPolicy backoff;  ///< of the thread waiting on this channel
  /// Next time at which the waiting thread polls by itself.
  Clock::time_point asleep_until = kAwake;
  /// Signaled when a batch is closed, on faults and questions, and by `wake`.
  Event& event;

  ChannelState(std::uint64_t number, Event& own) : id(number), event(own) {}
  std::string name(int of) const { return rank_name(of, member(of), whole); }
  int member(int of) const { return members[static_cast<std::size_t>(of)]; }
  bool faulty() const {
    return domain != nullptr && domain->faulty.load(std::memory_order_acquire);
  }
  bool is_isolated() const {
    return domain != nullptr && domain->kind == FaultDomain::Kind::kIsolated;
  }
};

/// A question to other ranks: for whom do you wait in the call with this name and tag?
struct Question {
  std::string_view name;
  std::uint32_t tag = 0;
  std::chrono::milliseconds timeout{0};  ///< time to wait for an answer
};

/// The ranks blocking the others: ranks without an answer and ranks waiting for no rank.
/// Alternatively, the difference between two calls.
struct FailedRanks {
  std::vector<int> ranks = {};
  std::string difference = {};
  Mismatch mismatch = {};  ///< the calls that differ
};

/// Counts the calling thread as waiting while this object lives.
class Waiting {
 public:
  explicit Waiting(std::atomic<int>& threads) : threads_(threads) { ++threads_; }
  ~Waiting() { --threads_; }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  std::atomic<int>& threads_;
};

class ProgressEngine {
 public:
  explicit ProgressEngine(std::unique_ptr<Wire> wire);
  /// Says goodbye and frees everything the network has released. The remaining memory lives until
  /// the process ends.
  ~ProgressEngine();

  /// Leaves all channels and ends the wire while transports still exist. Every later call and every
  /// current wait of these transports throws TransportError.
  void close();

  const Wire::Traits& traits() const { return traits_; }
  ChannelState& everybody() { return *everybody_; }
  BlockPools& pools() { return wire_->shared().pools; }

  /// Joins the channel of `members`. If `kind` differs from the kind of `channel`, the new channel
  /// starts a new fault domain.
  ChannelState& join(ChannelState& channel, std::span<const int> members, FaultDomain::Kind kind);
  void leave(ChannelState& channel);
  /// Marks a channel as no longer used by this rank, after `leave`. The state is freed when all
  /// ranks have left the channel.
  void release(ChannelState& channel);
  void post(ChannelState& channel, Batch& batch);
  void cancel(ChannelState& channel, Batch& batch);
  /// On an isolated channel: ends a batch alone with `error`, unless the batch is closed.
  void end_late(ChannelState& channel, Batch& batch, std::exception_ptr error);
  void progress(ChannelState& channel);
  void wait(ChannelState& channel, std::uint32_t seen, Clock::time_point until);

  /// Raises a fault of the channel's fault domain. Not for isolated channels.
  void raise(ChannelState& channel, const std::string& cause);
  Fault fault(const ChannelState& channel) const;
  /// Ends a mismatch with a fault that names the options that differ, if the ranks send the options
  /// in time.
  void settle(ChannelState& channel, const Mismatch& mismatch, const std::string& cause);
  /// Finds the ranks to blame. Asks the late ranks, then follows the answers along the awaited
  /// ranks. Ends at the ranks without an answer, at the ranks waiting for no rank, or at a
  /// differing call. Returns the late ranks if all ranks wait for each other.
  FailedRanks failed_ranks(ChannelState& channel, const Question& question,
                           std::span<const int> late);
  std::vector<int> unsent(const Batch& batch) const;
  TransferCounters counters(const ChannelState& channel) const;
  std::vector<int> hosts(const ChannelState& channel) const;
  /// See Wire::obstacle. `peer` is a world rank.
  std::string obstacle(int peer) const;

 private:
  /// State to keep beyond the engine while the network may still access its memory.
  struct State {
    std::unique_ptr<Wire> wire;  // destroyed last: the wire owns the pools
    std::deque<IncomingMessage> messages;
    std::vector<IncomingMessage*> free_messages;
    std::map<std::uint64_t, std::unique_ptr<ChannelState>> channels;
  };
  struct Outstanding {
    Batch* batch;
    ChannelState* channel;
    int peer;  // group rank in the channel
  };
  struct Held {
    std::uint64_t channel;
    Wire::Payload payload;
  };
  struct Announcement {
    int peer;
    std::shared_ptr<const Wire::Job> job;
  };
  struct Loss {
    std::string cause;
    Clock::time_point
        announced_at;  // time at which the loss is announced to ordinary fault domains
    bool is_announced = false;
  };
  /// A mismatch, until the other rank has compared the options.
  struct Dispute {
    std::shared_ptr<FaultDomain> domain;
    int peer;  // the world rank that compares the options
    std::string cause;
    Clock::time_point until;
  };
  using Number = std::pair<int, std::uint32_t>;  // peer, and the number of an announced message

  bool moves_alone() const {
    return traits_.waiting == Wire::Waiting::kSleep ||
           traits_.waiting == Wire::Waiting::kSleepAndPoll;
  }
  Wire::Parting parting();
  bool exchange_goodbyes();
  void pack(Batch& batch);
  Block in_block(ConstByteSpan bytes);
  void pause() const;
  void poll_until(ChannelState& channel, std::uint32_t seen, Clock::time_point until);
  Clock::time_point fall_asleep(ChannelState& channel);

  // The functions from here to `put` require the lock.
  ChannelState& channel_of(std::uint64_t id);
  Awaited awaited(const ChannelState& channel, std::uint32_t tag) const;
  void drop_if_over(ChannelState& channel);
  Head head_in(const ChannelState& channel, Kind kind) const;
  bool poll();
  bool poll_wire();
  void take(Wire::Arrival arrival);
  void take_later(Wire::Arrival arrival);
  void take_message(const Head& head, Wire::Arrival arrival);
  void take_leave(const Head& head, int peer);
  void part_with(int peer);
  void take_question(const Head& head, int peer);
  void take_answer(const Head& head, ConstByteSpan ranks);
  void answer_questions();
  void take_last(ChannelState& channel, const Batch& batch);
  void check_stray(ChannelState& channel, const IncomingMessage& message);
  void send(int peer, Head head, Wire::Payload payload = {});
  void send(ChannelState& channel, Batch& batch, Outgoing& outgoing);
  bool must_leave(const Batch& batch) const;
  std::shared_ptr<Wire::Job> count_send(ChannelState& channel, Batch& batch, int peer);
  Flow& flow(int peer) { return flows_[static_cast<std::size_t>(peer)]; }
  const Flow& flow(int peer) const { return flows_[static_cast<std::size_t>(peer)]; }
  void check_announced(const ChannelState& channel, const Batch& batch) const;
  void hold(int peer, Head head, Wire::Payload payload);
  void keep(Wire::Payload& payload);
  void keep_held(const Batch& batch);
  void take_request(const Head& head, int peer);
  void drop_held(int peer, const ChannelState* channel);
  void drop_announced(int peer);
  void request(IncomingMessage& message);
  void take_body(const Head& head, Wire::Arrival arrival);
  void return_credits(IncomingMessage& message);
  void match_receive(ChannelState& channel, Batch& batch, Incoming& incoming);
  bool is_sender(const ChannelState& channel, int from, int peer) const;
  void refuse(int peer);
  void paired(ChannelState& channel, IncomingMessage& message);
  void fail_misfit(ChannelState& channel, IncomingMessage& message);
  void take_back(ChannelState& channel, Batch& batch);
  static bool is_over(const ChannelState& channel, const Batch& batch);
  void end(ChannelState& channel, Batch& batch, std::exception_ptr error);
  void receive_rest(IncomingMessage& message);
  void came(IncomingMessage& message);
  void deliver(ChannelState& channel, IncomingMessage& message);
  IncomingMessage& new_message();
  void drop(IncomingMessage& message);
  void drop_unclaimed(ChannelState& channel);
  void wake_for(ChannelState& channel, const Batch& batch);
  Clock::time_point completion(const Batch& batch) const;
  bool gone(const ChannelState& channel, int peer) const;
  bool gone_from(const ChannelState& channel, int rank) const;
  void check_abandoned(ChannelState& channel);
  void abandon(ChannelState& channel, Batch& batch, int who);
  std::vector<std::shared_ptr<FaultDomain>> domains() const;
  FaultDomain& domain_of(std::uint64_t id);
  void raise_locked(FaultDomain& domain, const Fault& fault);
  void raise_all(const std::string& cause);
  void abort(FaultDomain& domain, const Fault& fault);
  bool in_dispute(const FaultDomain& domain) const;
  void dispute(ChannelState& channel, const Mismatch& mismatch, const std::string& cause);
  void take_comparison(const Head& head, const Wire::Arrival& arrival);
  void take_options(const Head& head, const Wire::Arrival& arrival);
  void end_disputes(Clock::time_point now);
  void hasten_disputes_with(int peer);
  void lose(int peer, const std::string& cause);
  void end_sends(int peer);
  bool announce_losses();
  void signal_all();
  void announce(const FaultDomain& domain);
  void take_fault(const Head& head, const Wire::Arrival& arrival);
  void send_fault(const FaultDomain& domain, int peer, const Block& text);
  bool all_announced() const;
  void announce_more();
  void announce_until(Clock::time_point until);
  class Inquiry;
  std::optional<std::uint32_t> put(ChannelState& channel, int rank, std::uint32_t tag);

  std::unique_ptr<State> state_;
  Wire* wire_;               // owned by the state
  SharedLock& shared_lock_;  // owned by the wire
  const Wire::Traits traits_;
  ChannelState* everybody_ = nullptr;
  std::vector<int> host_names_;  // by world rank
  int present_ = 1;              // channels not left
  std::set<int> gone_;           // world ranks that left all channels
  std::map<int, Loss> lost_;     // world ranks lost without a goodbye
  // Announcement time of the next loss, or the end of the next dispute.
  std::atomic<Clock::time_point> next_loss_{Clock::time_point::max()};
  std::map<const Wire::Job*, Outstanding> sends_;  // counted sends of batches that are under way
  std::vector<Flow> flows_;                        // by world rank
  std::map<Number, Held> held_;                // announced messages, until the peer requests them
  std::map<Number, IncomingMessage*> coming_;  // announced messages whose body is missing
  std::uint32_t asked_ = 0;                    // number of questions sent by this rank
  std::map<std::uint32_t, Awaited> answers_;   // received answers, by question number
  // Received questions, with the world rank that asked.
  std::vector<std::pair<Head, int>> questions_;
  std::atomic<bool> questioned_{false};  // True if questions arrived while no thread was waiting
  std::atomic<int> waiting_{0};          // number of waiting threads
  std::vector<Dispute> disputes_;        // at most one per fault domain
  std::vector<Announcement> announcements_;  // fault announcements
  bool ignores_arrivals_ = false;   // True if all fault domains are faulty: arrivals are ignored
  bool isolated_channels_ = false;  // True if isolated channels exist or existed
  bool closed_ = false;
  std::optional<bool> ended_;  // True if the wire released all memory; unset until asked
  // True if the fault is not announced yet because the raising thread may not use the network. Only
  // without isolated channels.
  bool unannounced_ = false;
};

}  // namespace tersor::host
