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
  bool has_left(int peer) const { return left_.contains(peer); }
  bool is_alone() const { return static_cast<int>(left_.size() + lost_.size()) == core_.ranks - 1; }
  /// True if a group rank left the channel or is lost; for kAnyRank: all other ranks.
  bool departed(const ChannelState& channel, int rank) const;
  /// "rank 2 left"
  std::string departure_reason(const ChannelState& channel, int rank) const;
  void record_departure(int peer);
  /// Records the loss of a rank without a goodbye. Returns false if the rank left before.
  bool record_loss(int peer, const std::string& cause);

  /// Time of the next announcement or end of a comparison by `run_due`. Thread-safe.
  Clock::time_point next_deadline() const { return next_deadline_.load(std::memory_order_relaxed); }
  /// Announces losses and ends comparisons at their times. Returns false if none was due.
  bool run_due(Clock::time_point now);

  /// True if all domains are faulty.
  bool ignores_arrivals() const { return ignores_arrivals_; }
  /// Marks a domain as faulty.
  void abort(FaultDomain& domain, const Fault& fault);
  /// A fault may follow from a mismatch: then the text of the mismatch is the cause.
  Fault cause(const FaultDomain& domain, const Fault& fault) const;
  /// Used for errors of the wire and for misuse of the wire.
  void fail_all(const std::string& cause) const;
  /// World rank `peer` sends in the name of another rank.
  void fail_forged_sender(int peer) const;
  void announce(const FaultDomain& domain);
  void announce(const FaultDomain& domain, int peer, const Block& text);
  bool all_announced() const;

  bool is_comparing(const FaultDomain& domain) const;
  /// Sends the options of a call, or asks the peer to send them. The rank with both options fails
  /// the domain.
  void compare_options(ChannelState& channel, const Mismatch& mismatch, const std::string& cause);
  void on_compare(const Head& head, const Wire::Arrival& arrival);
  void on_options(const Head& head, const Wire::Arrival& arrival);

 private:
  struct Loss {
    std::string cause;
    Clock::time_point announced_at;  // to ordinary fault domains
    bool is_announced = false;
  };
  /// A mismatch, until the other rank has compared the options.
  struct Comparison {
    std::shared_ptr<FaultDomain> domain;
    int peer;  // the world rank that compares the options
    std::string cause;
    Clock::time_point until;
  };

  bool peer_departed(const ChannelState& channel, int peer) const;
  void schedule(Clock::time_point time) { next_deadline_ = std::min(next_deadline_.load(), time); }
  ChannelState* comparing_channel(const Head& head, int peer) const;
  void end_comparisons(Clock::time_point now);
  void shorten_comparisons_with(int peer);

  const Core core_;
  std::set<int> left_;        // world ranks that left all channels
  std::map<int, Loss> lost_;  // world ranks lost without a goodbye
  std::atomic<Clock::time_point> next_deadline_{Clock::time_point::max()};
  std::vector<Comparison> comparisons_;  // at most one per fault domain
  std::vector<std::pair<int, std::shared_ptr<const Wire::Job>>> announcements_;  // by world rank
  bool ignores_arrivals_ = false;
};

std::vector<std::byte> to_bytes(const Fault& fault);
/// Returns a fault also for an unreadable message.
Fault parse_fault(const Wire::Arrival& arrival);

}  // namespace tersor::host
