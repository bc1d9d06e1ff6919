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
  Survivors(Transport& transport, int least);

  struct Agreed {
    std::uint32_t steps;       ///< maximum number of completed steps over the members
    std::vector<int> lost;     ///< ranks lost since the last agreement
    std::vector<int> members;  ///< remaining ranks
    bool enough;               ///< True if the members may continue
  };

  /// Call on all remaining ranks after a fault. `steps`: this rank's number of completed steps.
  /// Throws TransportError if the other ranks removed this rank.
  Agreed agree(std::uint32_t steps);
  /// Closes the channel, so other ranks stop waiting for this rank.
  void give_up();

  /// Ascending ranks of the constructor's transport, like all ranks in this class.
  const std::vector<int>& members() const { return members_; }
  int rank() const { return rank_; }
  /// Returns a transport of the remaining ranks, with new rank numbers. A collective call of the
  /// remaining ranks.
  std::unique_ptr<Transport> transport() { return channel_->split(members_); }
  /// Lost ranks and steps, one line per loss; empty without a loss.
  std::string explain() const { return losses_; }

 private:
  using Set = std::vector<bool>;  ///< one entry per rank
  struct Vote {
    std::uint32_t steps = 0;
    Set set;
  };
  /// The number of completed steps. Followed by one bit per rank, lowest rank first.
  struct Header {
    std::uint32_t steps;
  };

  static std::vector<int> ranks_of(const Set& set);
  Vote read(const Mailbox<Header>::Message& message) const;
  std::size_t set_bytes() const { return ceil_div(set_.size(), 8); }

  void send_vote(std::uint32_t steps);
  void send_rest();
  bool is_sent();
  bool receive_vote(int peer);
  std::optional<Vote> received_vote(int peer);
  void receive_later_votes();
  void receive_later_votes(int peer);
  bool receive_votes();
  void take(int peer, const Vote& vote);
  void leave_out(int peer);
  void leave_out_silent();
  bool has_answered(int peer) const;
  bool all_have_answered() const;
  bool enough() const;
  Agreed conclude(std::uint32_t steps);

  const int rank_;
  const int least_;
  std::unique_ptr<Transport> channel_;
  std::optional<Mailbox<Header>> mailbox_;  ///< empty after `give_up`
  std::vector<int> members_;
  std::vector<int> base_;         ///< ranks of the last completed step
  std::uint32_t base_steps_ = 0;  ///< completed steps when members_ last changed
  std::string losses_;

  // The current agreement. A change is sent in a new message, even while an earlier message to the
  // same rank is under way.
  Set set_;
  bool changed_ = false;
  Clock::time_point until_;
  std::vector<std::optional<Vote>> answers_;  ///< last vote of each rank
};

}  // namespace tersor
