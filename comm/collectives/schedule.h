// A collective as a list of steps, fixed before any transfer: the messages a rank creates, sends
// and receives, and the handling of received messages. Each rank has a schedule with the same
// number of steps and skips idle steps.
//
// Messages are identified by *shards*: units encoded, sent and decoded as a whole. Peers are ranks
// of the whole transport. tests/schedules runs the schedules of all ranks and checks them against
// docs/explain/algorithms.md.
#pragma once

#include "comm/collectives/grid.h"
#include "comm/collectives/hosts.h"

#include <tersor/codec.h>
#include <tersor/collectives.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tersor {

/// How a step creates its shards' messages.
enum class OnSend : std::uint8_t {
  kEncode,   ///< encodes the values
  kReduce,   ///< adds the retained messages of the preceding step and encodes the sum
  kForward,  ///< forwards the retained messages of the preceding step unchanged
};

/// How a step handles received messages or raw values.
enum class OnReceive : std::uint8_t {
  kDecode,  ///< adds all messages of a shard and assigns the sum to the values
  kAbsorb,  ///< the codec stores state for the next round
  kRetain,  ///< retains the messages for the next step
};

/// The transport's operation on raw values, in steps without messages.
enum class Native : std::uint8_t { kNone, kSum, kMaximum };

/// A message of a shard or of several contiguous shards, to or from a rank. A rank sends no message
/// to itself.
struct StepMessage {
  int peer = 0;
  std::size_t shard = 0;
  std::size_t shards = 1;
  std::size_t stride = 1;  ///< received shards are first, first + stride, first + 2 * stride, …

  bool operator==(const StepMessage&) const = default;
};

struct Step {
  OnSend on_send = OnSend::kEncode;
  std::size_t first_shard = 0;  ///< first created shard, or first shard of the raw values
  std::size_t shard_count = 0;
  std::vector<StepMessage> sends = {};     ///< in sending order, own message last
  std::vector<StepMessage> receives = {};  ///< ordered by shard, then by rank
  OnReceive on_receive = OnReceive::kDecode;
  Native native = Native::kNone;  ///< in native steps, member l owns shard l
  bool gathers = false;           ///< True if each rank sends one message to each other rank
  /// True if ranks forward messages; all steps then share a tag.
  bool forwards = false;
  std::uint8_t round = 0;  ///< of the codec
  bool sums = false;       ///< True if the messages hold sums that a rank encoded again
  std::uint8_t stage = 0;  ///< number of earlier reductions of the created messages; 1 in a chain

  bool is_native() const { return native != Native::kNone; }
  /// True if this rank does nothing in the step.
  bool idle() const { return sends.empty() && receives.empty() && !is_native(); }
};

using Schedule = std::vector<Step>;

/// A group of ranks exchanging values.
struct Group {
  std::vector<int> members = {};  ///< by group rank, ascending if they add; empty on non-members
  int rank = 0;                   ///< group rank of this rank
  Grid grid = {};                 ///< for reducing and gathering the owned shards
  std::size_t first_shard = 0;    ///< in the schedule
  bool full = false;              ///< True if all ranks are members

  bool owns() const { return !members.empty() && grid.owns(rank); }
  int rank_at(int of_group_rank) const { return members[static_cast<std::size_t>(of_group_rank)]; }
};

/// All ranks on a grid; by default, each rank owns a shard.
Group full_group(int rank, const Grid& grid);
inline Group full_group(int rank, int ranks) { return full_group(rank, Grid(ranks)); }

/// All ranks, ordered by host, on a grid of two dimensions: within hosts, then between hosts. Hosts
/// must have equally many ranks.
Group hierarchical_group(const HostGroups& groups, int rank);
/// The owner of each shard, if each member owns a shard.
std::vector<int> shard_owners(const Group& group);

/// Sum or maximum of raw values by the transport.
Schedule native_sum(const Group& group);
Schedule native_maximum(const Group& group);
/// Sends the single shard of each rank to all ranks, and each rank adds all.
Schedule one_shot(const Group& group);
/// Sends shards to their owners, who add them. On a grid, each dimension sends shards to the owners
/// in this dimension, who add, encode and send the sums on.
Schedule reduce_scatter(const Group& group);
/// Sends each owner's shard to all ranks. On a grid, forwards unchanged messages from dimension to
/// dimension.
Schedule all_gather(const Group& group);
/// Sends shards to their owners, who add them, encode the sums and send the sums to all ranks.
Schedule two_shot(const Group& group);
/// Sends the root's only shard unchanged to all ranks: along a chain, whose ranks forward a chunk
/// while receiving the next, or down a binomial tree. `root` is a group rank, here and below.
Schedule chain_broadcast(const Group& group, int root);
Schedule tree_broadcast(const Group& group, int root);
/// Sends shards to their owners, who add them, encode the sums and send the sums to the root only.
Schedule reduce_to(const Group& group, int root);
/// Sends the only shard of all ranks to the root along a chain. Each rank adds its own values to
/// the received sum and forwards a chunk while receiving the next. For sums with lossless codecs.
Schedule chain_reduce(const Group& group, int root);
/// Sends each owner's shard to the root, or the root's shards to the owners.
Schedule gather_to(const Group& group, int root);
Schedule scatter_from(const Group& group, int root);
/// Sends a shard to each rank and receives a shard from each rank. On a grid of two dimensions, the
/// first dimension sends all shards for a group of the second dimension to a member, who forwards
/// them unchanged. Shards 0 to n-1 are sent. On a grid, shards n to 2n-1 are forwarded, ordered by
/// destination, then by source. The last n shards are received. shard_to and shard_from return the
/// shards to and from a group rank.
Schedule all_to_all(const Group& group);
std::size_t shard_to(const Group& group, int group_rank);
std::size_t shard_from(const Group& group, int group_rank);
/// Sends the only shard from a group rank to another.
Schedule send_to(const Group& group, int from, int to);
/// Runs the rounds of a codec in sequence, with an exchange each. The codec absorbs the results of
/// all rounds except the last.
Schedule allreduce_by(std::span<const Exchange> rounds, const Group& group);

/// Like allreduce_by without the final gather: results stay with their owners, if any.
Schedule reduce_scatter_by(std::span<const Exchange> rounds, const Group& group);

/// The number of shards in an allreduce of `ranks` ranks with the last round `last`; 1 without
/// owners.
int shards_of(Exchange last, int ranks, const Grid& grid);

/// A hierarchical allreduce. The ranks of a host add host shards at the owners. The owners exchange
/// the hosts' sums with `between` and send the results to their hosts. Shards: one per host shard
/// towards the owner, the shards between hosts, one per host shard from the owner.
Schedule hierarchical(const HostGroups& groups, int rank, std::span<const Exchange> between);

/// A hierarchical reduce-scatter over hosts with equally many ranks. A host's ranks add the shards
/// of all ranks with a local rank at their rank with this local rank. Ranks with equal local ranks
/// then exchange the hosts' sums, each sent to its owner. Shards: one per local rank, then the
/// shards of this rank's local rank, by owner.
Schedule hierarchical_reduce_scatter(const HostGroups& groups, int rank);

}  // namespace tersor
