// Departed ranks, and the faults of all domains: which rank left or is lost, which calls differ,
// and which ranks received the announcement of a fault.
#pragma once

#include <tersor/network.h>

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "comm/transport/host/actions.h"

namespace tersor::host {

class FaultDomains {
 public:
  explicit FaultDomains(const Core& core) : core_(core) {}

  /// True if world rank `peer` left all channels.
  bool has_left(int peer) const { return gone_.contains(peer); }
  bool is_alone() const { return static_cast<int>(gone_.size() + lost_.size()) == core_.ranks - 1; }
  /// True if a group rank left the channel or is lost; for kAnyRank: all other ranks.
  bool gone(const ChannelState& channel, int rank) const;
  /// "rank 2 left"
  std::string why_gone(const ChannelState& channel, int rank) const;
  void leave(int peer);
  /// Records the loss of a rank without a goodbye. Returns false if the rank left before.
  bool lose(int peer, const std::string& cause);

  /// Time of the next announcement or end of a dispute by `act`. Thread-safe.
  Clock::time_point due() const { return due_.load(std::memory_order_relaxed); }
  /// Announces losses and ends disputes at their times. Returns false if none was due.
  bool act(Clock::time_point now);

  /// True if all domains are faulty.
  bool ignores_arrivals() const { return ignores_arrivals_; }
  /// Marks a domain as faulty.
  void abort(FaultDomain& domain, const Fault& fault);
  /// A fault may follow from a dispute: then the text of the dispute is the cause.
  Fault cause(const FaultDomain& domain, const Fault& fault) const;
  /// Used for errors of the wire and for misuse of the wire.
  void fail_all(const std::string& cause) const;
  /// World rank `peer` sends in the name of another rank.
  void refuse(int peer) const;
  void announce(const FaultDomain& domain);
  void announce(const FaultDomain& domain, int peer, const Block& text);
  bool all_announced() const;

  bool in_dispute(const FaultDomain& domain) const;
  /// Sends the options of a call, or asks the peer to send them. The rank with both options fails
  /// the domain.
  void dispute(ChannelState& channel, const Mismatch& mismatch, const std::string& cause);
  void take_comparison(const Head& head, const Wire::Arrival& arrival);
  void take_options(const Head& head, const Wire::Arrival& arrival);

 private:
  struct Loss {
    std::string cause;
    Clock::time_point announced_at;  // to ordinary fault domains
    bool is_announced = false;
  };
  /// A mismatch, until the other rank has compared the options.
  struct Dispute {
    std::shared_ptr<FaultDomain> domain;
    int peer;  // the world rank that compares the options
    std::string cause;
    Clock::time_point until;
  };

  bool is_gone(const ChannelState& channel, int peer) const;
  void act_by(Clock::time_point time) { due_ = std::min(due_.load(), time); }
  ChannelState* disputed(const Head& head, int peer) const;
  void end_disputes(Clock::time_point now);
  void hasten_disputes_with(int peer);

  const Core core_;
  std::set<int> gone_;        // world ranks that left all channels
  std::map<int, Loss> lost_;  // world ranks lost without a goodbye
  std::atomic<Clock::time_point> due_{Clock::time_point::max()};
  std::vector<Dispute> disputes_;  // at most one per fault domain
  std::vector<std::pair<int, std::shared_ptr<const Wire::Job>>> announcements_;  // by world rank
  bool ignores_arrivals_ = false;
};

std::vector<std::byte> to_bytes(const Fault& fault);
/// Returns a fault also for an unreadable message.
Fault parse_fault(const Wire::Arrival& arrival);

}  // namespace tersor::host
