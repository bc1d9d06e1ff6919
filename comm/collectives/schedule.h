// A collective as a list of steps, before anything moves: which messages this rank makes, to whom
// they go, from whom it takes some, and what it does with them. Every rank has a schedule of its
// own with the same number of steps; a rank that has no part in one lets it go by.
//
// Messages are named by *lanes*: what travels together and is encoded and decoded as one. Peers are
// ranks of the whole transport. tests/schedules walks the schedules of all ranks and holds them to
// docs/algorithms.md.
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

/// How the lanes that a step makes come to be.
enum class Make : std::uint8_t {
  kEncode,   ///< from the values
  kReduce,   ///< from the messages kept of the step before: added, and encoded once more
  kForward,  ///< those kept of the step before, as they are
};

/// What becomes of the messages, or the bare values, that came in a step.
enum class Take : std::uint8_t {
  kDecode,  ///< all of one lane are added and assigned to the values
  kAbsorb,  ///< the codec keeps what it needs of them in its next round
  kKeep,    ///< for the next step
};

/// What the transport makes of bare values, where no messages are sent.
enum class Native : std::uint8_t { kNone, kSum, kMaximum };

/// The message of a lane, or of several one behind the other, to or from a rank. From a rank to
/// itself nothing is sent.
struct Parcel {
  int peer = 0;
  std::size_t lane = 0;
  std::size_t lanes = 1;
  std::size_t apart = 1;  ///< received lanes are first, first + apart, first + 2 * apart, …

  bool operator==(const Parcel&) const = default;
};

struct Step {
  Make make = Make::kEncode;
  std::size_t first_lane = 0;  ///< of those that it makes, or whose bare values it gives
  std::size_t lane_count = 0;
  std::vector<Parcel> sends = {};     ///< in this order, to itself last
  std::vector<Parcel> receives = {};  ///< in the order of lanes, then ranks
  Take take = Take::kDecode;
  Native native = Native::kNone;  ///< of lanes: member l owns lane l
  bool gathers = false;           ///< every rank sends one message to every other
  bool relays = false;            ///< messages go on from rank to rank: all steps share a tag
  std::uint8_t round = 0;         ///< of the codec
  std::uint8_t stage = 0;         ///< how often what it makes was reduced; in a chain 1

  bool is_native() const { return native != Native::kNone; }
  /// This rank has no part in it.
  bool idle() const { return sends.empty() && receives.empty() && !is_native(); }
};

using Schedule = std::vector<Step>;

/// Ranks that exchange something among them.
struct Party {
  std::vector<int> members = {};  ///< by place, ascending where they add; empty: this rank is none
  int place = 0;                  ///< this rank's index among the members
  Grid grid = {};                 ///< how members that own lanes reduce and gather them
  std::size_t first_lane = 0;     ///< in the schedule
  bool whole = false;             ///< all ranks are members

  bool owns() const { return !members.empty() && grid.owns(place); }
  int rank_at(int of_place) const { return members[static_cast<std::size_t>(of_place)]; }
};

/// All ranks, which exchange on a grid; and without one, where each owns a lane.
Party everybody(int rank, const Grid& grid);
inline Party everybody(int rank, int ranks) { return everybody(rank, Grid(ranks)); }

/// All ranks, host behind host, on a grid of two dimensions: within a host, then between hosts,
/// which have equally many ranks.
Party by_hosts(const HostGroups& groups, int rank);
/// The rank that owns each lane, where every member owns one.
std::vector<int> lane_owners(const Party& party);

/// Bare values, added by the transport; or the largest of them.
Schedule native_sum(const Party& party);
Schedule native_maximum(const Party& party);
/// Everybody's only lane to everybody, who adds them all.
Schedule one_shot(const Party& party);
/// Lanes to their owners, who add them. On a grid: in each dimension to the one who owns them
/// there, who adds them, encodes the sums and sends these on.
Schedule reduce_scatter(const Party& party);
/// Each owner's lane to everybody. On a grid: as it is, from dimension to dimension.
Schedule all_gather(const Party& party);
/// Lanes to their owners, who add them, encode the sums and send these to everybody.
Schedule two_shot(const Party& party);
/// The root's only lane to everybody, as it is: along a chain, whose ranks pass one chunk on while
/// the next one comes; or down a binomial tree. `root` is a place in the party, here and below.
Schedule chain_broadcast(const Party& party, int root);
Schedule tree_broadcast(const Party& party, int root);
/// Lanes to their owners, who add them, encode the sums and send these to the root alone.
Schedule reduce_to(const Party& party, int root);
/// The only lane of all to the root along a chain: a rank adds its own to the sum that comes, and
/// passes one chunk on while the next one comes. For sums, and codecs that lose nothing.
Schedule chain_reduce(const Party& party, int root);
/// Each owner's lane to the root; and the root's lanes to their owners.
Schedule gather_to(const Party& party, int root);
Schedule scatter_from(const Party& party, int root);
/// To each rank a lane of its own, and one from each. On a grid of two dimensions: in the first, to
/// a rank all that goes to its group in the second, to which it hands that on as it is. Of n ranks
/// the first n lanes go, on a grid the next n pass, by whom they reach and then by who made them;
/// the last n come. Below, those to and from a place.
Schedule all_to_all(const Party& party);
std::size_t lane_to(const Party& party, int place);
std::size_t lane_from(const Party& party, int place);
/// The only lane of one place to another.
Schedule send_to(const Party& party, int from, int to);
/// The rounds of a codec, one after the other, each by one exchange. What comes of all but the last
/// is absorbed.
Schedule allreduce_by(std::span<const Exchange> rounds, const Party& party);

/// The same, but what would come back in the end stays with its owners, where somebody owns
/// anything.
Schedule reduce_scatter_by(std::span<const Exchange> rounds, const Party& party);

/// Lanes of an allreduce of so many ranks whose last round goes so: one where nobody owns anything.
int lanes_of(Exchange last, int ranks, const Grid& grid);

/// Neighbours add their shards at the shards' owners; the owners of each exchange their host's sum
/// by `between`; and hand the result to their neighbours. Lanes: one a shard on its way to the
/// owner, those between the hosts, one a shard on its way back.
Schedule hierarchical(const HostGroups& groups, int rank, std::span<const Exchange> between);

/// Of hosts of equally many ranks: neighbours add the shards of all ranks of one place at their
/// neighbour of that place; those of one place exchange their hosts' sums, each of which goes to
/// its owner. Lanes: one a place, then the shards of this rank's place, by owner.
Schedule hierarchical_reduce_scatter(const HostGroups& groups, int rank);

}  // namespace tersor
