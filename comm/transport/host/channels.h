// The channels of a rank, and the fault domains of the channels.
#pragma once

#include <tersor/network.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "comm/transport/host/agreement_cache.h"
#include "comm/transport/host/backoff_policy.h"
#include "comm/transport/host/match_queue.h"
#include "comm/transport/host/shared_lock.h"

namespace tersor::host {

/// Why a transport was aborted.
struct Fault {
  Fault(std::string cause, std::vector<Difference> differences = {})
      : text(std::move(cause)), differences(std::move(differences)) {}

  std::string text;
  std::vector<Difference> differences;
  /// True if ranks were silent for longer than the timeout of an operation on this rank.
  bool is_timeout = false;
};

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

  FaultDomain(std::uint64_t channel, Kind domain_kind) : id(channel), kind(domain_kind) {}
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
  std::set<int> departed;  ///< world ranks
  /// Number of channels made from this channel, by members.
  std::map<std::vector<int>, int> child_counts;
  TransferCounters counters;
  AgreementCache agreements;
  BackoffPolicy backoff;  ///< of the thread waiting on this channel
  /// Next time at which the waiting thread polls by itself.
  Clock::time_point next_poll = kAwake;
  /// Signaled when a batch is closed, on faults and questions, and by `wake`.
  Event& event;

  ChannelState(std::uint64_t number, Event& own) : id(number), event(own) {}
  std::string name(int of) const { return rank_name(of, member(of), whole); }
  int member(int of) const { return members[static_cast<std::size_t>(of)]; }
  /// True if world rank `peer` has group rank `from`. Always true before `join`.
  bool is_sender(int from, int peer) const {
    const auto index = static_cast<std::size_t>(from);
    return members.empty() || (index < members.size() && members[index] == peer);
  }
  bool faulty() const {
    return domain != nullptr && domain->faulty.load(std::memory_order_acquire);
  }
  bool is_isolated() const {
    return domain != nullptr && domain->kind == FaultDomain::Kind::kIsolated;
  }
};

/// All channels of a rank. Requires the lock.
class Channels {
 public:
  Channels(SharedLock& lock, int rank, int ranks);

  ChannelState& world() { return *world_; }
  const auto& all() const { return channels_; }
  /// Makes a missing channel.
  ChannelState& at(std::uint64_t id);
  /// Null for a missing channel.
  ChannelState* find(std::uint64_t id) const {
    const auto found = channels_.find(id);
    return found == channels_.end() ? nullptr : found->second.get();
  }
  /// Joins the channel of `members`. If `kind` differs from the kind of `channel`, the new channel
  /// starts a new fault domain.
  ChannelState& join(ChannelState& channel, std::span<const int> members, FaultDomain::Kind kind);
  void erase(ChannelState& channel) {
    lock_.return_event(channel.event);
    channels_.erase(channel.id);
  }
  /// Number of joined channels that this rank has not left.
  int open_channels = 1;
  /// True if isolated channels exist or existed.
  bool any_isolated() const { return any_isolated_; }

  std::vector<std::shared_ptr<FaultDomain>> domains() const;
  /// Makes a missing domain: a later `join` finds a fault of the domain.
  const std::shared_ptr<FaultDomain>& domain_of(std::uint64_t id);
  /// Wakes the waiting threads of all channels.
  void signal_all() const {
    for (const auto& [id, channel] : channels_) lock_.signal(channel->event);
  }

 private:
  SharedLock& lock_;
  std::map<std::uint64_t, std::unique_ptr<ChannelState>> channels_;
  ChannelState* world_;
  bool any_isolated_ = false;
};

}  // namespace tersor::host
