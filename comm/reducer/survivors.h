// Finds the ranks that remain after a fault. The remaining ranks agree without a leader, over an
// isolated channel. Each rank sends the set of reachable ranks to all others. Ranks intersect
// differing sets and remove lost and silent ranks, until all members of a set have sent exactly
// this set. A rank continues with a set only after receiving the set from each member. Afterwards,
// a member can only agree on a subset.
#pragma once

#include <tersor/align.h>
#include <tersor/transport.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/transport/mailbox.h"

namespace tersor {

class Survivors {
 public:
  /// Makes an isolated channel. A collective call of all ranks. After a fault, a rank that sends
  /// nothing for 4 s is removed. `least`: the minimum number of ranks to continue. 0: more than
  /// half of the ranks of the last completed step or, at exactly half, the half with the lowest
  /// rank.
  Survivors(Transport& transport, int min_ranks);

  struct Decision {
    std::uint32_t steps;       ///< maximum number of completed steps over the members
    std::vector<int> lost;     ///< ranks lost since the last agreement
    std::vector<int> members;  ///< remaining ranks
    bool has_quorum = false;   ///< True if the members may continue
    bool is_repeat = false;    ///< True if no rank is lost, and the members may repeat the step
  };

  /// Why this rank's step failed.
  enum class Cause : std::uint32_t { kOther, kTimeout };

  /// Call on all remaining ranks after a fault. `steps`: this rank's number of completed steps.
  /// If no rank is lost, and an operation of a rank had timed out, the members may repeat the step,
  /// at most three times in a row. Throws TransportError if the other ranks removed this rank.
  Decision agree(std::uint32_t steps, Cause cause);
  /// Closes the channel, so other ranks stop waiting for this rank.
  void close();

  /// Ascending ranks of the constructor's transport, like all ranks in this class.
  const std::vector<int>& members() const { return members_; }
  int rank() const { return rank_; }
  /// Returns a transport of the remaining ranks, with new rank numbers. A collective call of the
  /// remaining ranks.
  std::unique_ptr<Transport> transport() { return channel_->split(members_); }
  /// Lost ranks and steps, one line per loss; empty without a loss.
  std::string explain() const { return loss_log_; }

 private:
  using Set = std::set<int>;  ///< ranks
  /// Followed by one bit per rank, lowest rank first: the set.
  struct Header {
    std::uint32_t steps;       ///< completed steps
    std::uint32_t agreements;  ///< of the sender, concluded earlier with exactly this set
    Cause cause;
  };
  struct Vote {
    Header header;
    Set set;
  };

  Vote read(const Mailbox<Header>::Message& message) const;
  std::size_t set_bytes() const { return ceil_div(votes_.size(), 8); }

  void send_vote(std::uint32_t steps, Cause cause);
  void flush_sends();
  bool all_sent();
  bool receive_vote(int peer);
  std::optional<Vote> poll_vote(int peer);
  void receive_later_votes();
  void receive_later_votes(int peer);
  bool receive_votes();
  void apply_vote(const Vote& vote);
  void remove_silent();
  bool has_agreed(int peer) const;
  bool all_agreed() const;
  bool has_quorum() const;
  std::uint32_t agreements() const;
  Decision conclude(std::uint32_t steps, Cause cause);

  const int rank_;
  const int min_ranks_;
  std::unique_ptr<Transport> channel_;
  std::optional<Mailbox<Header>> mailbox_;  ///< empty after `close`
  std::vector<int> members_;
  std::vector<int> base_;         ///< ranks of the last completed step
  std::uint32_t base_steps_ = 0;  ///< completed steps at the last agreement
  std::uint32_t agreements_ = 0;  ///< concluded with exactly `members_`
  int repeats_ = 0;               ///< of the current step
  std::string loss_log_;

  // The current agreement. A change is sent in a new message, even while an earlier message to the
  // same rank is under way.
  Set set_;
  bool changed_ = false;
  Clock::time_point deadline_;
  std::vector<std::optional<Vote>> votes_;  ///< last vote of each rank, also of a later agreement
};

}  // namespace tersor
