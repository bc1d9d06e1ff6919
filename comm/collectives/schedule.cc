#include "comm/collectives/schedule.h"

#include "comm/transport/arguments.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace tersor {
namespace {

void append(Schedule& schedule, Schedule steps) {
  schedule.insert(schedule.end(), steps.begin(), steps.end());
}

/// The order in which a member sends to the others: starts with the next member and ends with
/// itself, to spread the load over the members.
std::vector<int> in_turn(std::vector<int> group_ranks, int own) {
  const auto self = std::ranges::find(group_ranks, own);
  if (self != group_ranks.end())
    std::rotate(group_ranks.begin(), std::next(self), group_ranks.end());
  return group_ranks;
}

/// The ranks exchanging with this rank in a dimension.
std::vector<int> group_of(const Party& party, int dimension) {
  return party.members.empty() ? std::vector<int>{} : party.grid.group(party.rank, dimension);
}

std::vector<int> owners_of(const Party& party, std::vector<int> group) {
  std::erase_if(group, [&](int group_rank) { return !party.grid.owns(group_rank); });
  return group;
}

/// The message with the shards of a group rank after `dimensions` dimensions, to or from a peer.
Parcel parcel(const Party& party, int peer, int group_rank, int dimensions) {
  const ShardRange shards = party.grid.shards_after(group_rank, dimensions);
  return {party.rank_at(peer), party.first_shard + shards.first, shards.count};
}

void make_shards(Step& step, const Party& party, ShardRange shards) {
  step.first_shard = party.first_shard + shards.first;
  step.shard_count = shards.count;
}

/// Sends the results of the earlier dimensions to the owners in this dimension.
Step to_owners(const Party& party, int dimension) {
  Step step{.make = dimension == 0 ? Make::kEncode : Make::kReduce,
            .first_shard = party.first_shard,
            .take = Take::kKeep,
            .stage = static_cast<std::uint8_t>(dimension)};
  const std::vector<int> group = group_of(party, dimension);
  for (const int group_rank : owners_of(party, in_turn(group, party.rank)))
    step.sends.push_back(parcel(party, group_rank, group_rank, dimension + 1));
  for (const int group_rank : group)
    if (party.owns()) step.receives.push_back(parcel(party, group_rank, party.rank, dimension + 1));
  if (!group.empty()) make_shards(step, party, party.grid.shards_after(party.rank, dimension));
  return step;
}

/// Sends each owner's results of the later dimensions to the whole group.
Step to_everybody(const Party& party, int dimension) {
  Step step{.make = Make::kForward,
            .first_shard = party.first_shard,
            .take = dimension == 0 ? Take::kDecode : Take::kKeep,
            .gathers = party.whole && party.grid.is_direct(),
            .stage = static_cast<std::uint8_t>(party.grid.dimensions())};
  const std::vector<int> group = group_of(party, dimension);
  for (const int group_rank : in_turn(group, party.rank))
    if (party.owns()) step.sends.push_back(parcel(party, group_rank, party.rank, dimension + 1));
  for (const int group_rank : owners_of(party, group))
    step.receives.push_back(parcel(party, group_rank, group_rank, dimension + 1));
  if (party.owns()) make_shards(step, party, party.grid.shards_after(party.rank, dimension + 1));
  return step;
}

/// A step of an all_to_all: each rank of the group receives the shards routed through it. Shards
/// received in an earlier step are forwarded unchanged. Received shards are stored with gaps, so
/// shards for a rank of the next dimension are contiguous.
Step deal_out(const Party& party, int dimension) {
  const std::size_t n = party.members.size();
  const std::vector<int> group = party.grid.group(party.rank, dimension);
  const std::size_t shards = n / group.size();
  const bool last = dimension + 1 == party.grid.dimensions();
  Step step{.make = dimension == 0 ? Make::kEncode : Make::kForward,
            .first_shard = party.first_shard + static_cast<std::size_t>(dimension) * n,
            .shard_count = n,
            .take = Take::kKeep};
  for (const int group_rank : in_turn(group, party.rank)) {
    const auto index =
        static_cast<std::size_t>(std::ranges::find(group, group_rank) - group.begin());
    step.sends.push_back({party.rank_at(group_rank), step.first_shard + index * shards, shards});
  }
  for (std::size_t i = 0; i < group.size(); ++i)
    step.receives.push_back({party.rank_at(group[i]),
                             step.first_shard + n + i * (last ? shards : 1), shards,
                             last ? 1 : group.size()});
  return step;
}

/// A message of a broadcast: the step and the peer, counted from the root.
struct Hop {
  int step;
  int peer;
};

// Forwards each message in consecutive steps. Each step also hands the message to the rank itself,
// and the last step decodes the message.
Schedule relay(const Party& party, int root, int steps, Hop came, const std::vector<Hop>& sends) {
  const int n = static_cast<int>(party.members.size());
  const auto rank = [&](int peer) { return party.rank_at((peer + root) % n); };
  const auto with = [&](int peer) { return Parcel{peer, party.first_shard}; };
  Schedule schedule(static_cast<std::size_t>(steps),
                    Step{.first_shard = party.first_shard, .relays = true});
  const int own = party.rank_at(party.rank);
  if (party.rank != root) {
    Step& step = schedule[static_cast<std::size_t>(came.step)];
    step.receives = {with(rank(came.peer))};
    step.take = sends.empty() ? Take::kDecode : Take::kKeep;
  }
  for (const Hop& hop : sends) {
    Step& step = schedule[static_cast<std::size_t>(hop.step)];
    const bool first = hop.step == 0;
    step.make = first ? Make::kEncode : Make::kForward;
    step.shard_count = 1;
    step.sends = {with(rank(hop.peer)), with(own)};
    step.receives = {with(own)};
    step.take = hop.step == sends.back().step ? Take::kDecode : Take::kKeep;
  }
  return schedule;
}

Schedule native(const Party& party, Native native) {
  if (party.members.empty()) return {Step{}};
  return {
      {.first_shard = party.first_shard, .shard_count = party.members.size(), .native = native}};
}

Schedule by(Exchange exchange, const Party& party) {
  switch (exchange) {
    case Exchange::kNativeSum:
      return native_sum(party);
    case Exchange::kNativeMaximum:
      return native_maximum(party);
    case Exchange::kTwoShot:
      return two_shot(party);
    case Exchange::kGather:
      return one_shot(party);
  }
  return {};
}

// The ranks of a host. The number of owners is the number of ranks on the smallest host.
Party neighbours(const HostGroups& groups, int rank) {
  const std::vector<int>& members = groups.neighbours(rank);
  return {.members = members,
          .rank = groups.local_rank(rank),
          .grid = Grid::owned_by_first(groups.host_shards(), static_cast<int>(members.size()))};
}

// The owners of this rank's host shard, if any.
Party host_shard_owners(const HostGroups& groups, int rank) {
  Party party{.grid = groups.grid(), .first_shard = static_cast<std::size_t>(groups.host_shards())};
  if (!groups.encodes(rank)) return party;
  party.members = groups.owners(groups.local_rank(rank));
  party.rank = index_in(party.members, rank);
  return party;
}

}  // namespace

Party everybody(int rank, const Grid& grid) {
  return {.members = all_ranks(grid.group_size()), .rank = rank, .grid = grid, .whole = true};
}

Party by_hosts(const HostGroups& groups, int rank) {
  const int digits[] = {groups.host_shards(), groups.hosts()};
  Party party{.members = groups.by_host(), .grid = Grid(digits, groups.ranks()), .whole = true};
  party.rank = static_cast<int>(std::ranges::find(party.members, rank) - party.members.begin());
  return party;
}

std::vector<int> shard_owners(const Party& party) {
  std::vector<int> owners(party.members.size());
  for (int group_rank = 0; group_rank < party.grid.owners(); ++group_rank)
    owners[party.grid.shards_after(group_rank, party.grid.dimensions()).first] =
        party.rank_at(group_rank);
  return owners;
}

Schedule native_sum(const Party& party) { return native(party, Native::kSum); }

Schedule native_maximum(const Party& party) { return native(party, Native::kMaximum); }

Schedule one_shot(const Party& party) {
  const auto group_size = static_cast<int>(party.members.size());
  Step step{.first_shard = party.first_shard,
            .shard_count = party.members.empty() ? std::size_t{0} : 1,
            .gathers = party.whole};
  for (const int group_rank : in_turn(all_ranks(group_size), party.rank))
    step.sends.push_back({party.rank_at(group_rank), party.first_shard});
  for (const int member : party.members) step.receives.push_back({member, party.first_shard});
  return {step};
}

Schedule reduce_scatter(const Party& party) {
  Schedule schedule;
  for (int i = 0; i < party.grid.dimensions(); ++i) schedule.push_back(to_owners(party, i));
  schedule.back().take = Take::kDecode;
  return schedule;
}

Schedule all_gather(const Party& party) {
  Schedule schedule;
  for (int i = party.grid.dimensions(); i-- > 0;) schedule.push_back(to_everybody(party, i));
  schedule.front().make = Make::kEncode;
  return schedule;
}

// Each value is quantized once more than the grid has dimensions, for any number of ranks: by the
// sender, and by the owners in each dimension. Sums return unchanged, and owners decode their own
// messages like all ranks, so all ranks get the same bits.
Schedule two_shot(const Party& party) {
  Schedule schedule = reduce_scatter(party);
  schedule.back().take = Take::kKeep;
  append(schedule, all_gather(party));
  schedule[static_cast<std::size_t>(party.grid.dimensions())].make = Make::kReduce;
  return schedule;
}

Schedule chain_broadcast(const Party& party, int root) {
  const int n = static_cast<int>(party.members.size()), own = (party.rank - root + n) % n;
  std::vector<Hop> sends;
  if (own + 1 < n) sends.push_back({own, own + 1});
  return relay(party, root, n - 1, {own - 1, own - 1}, sends);
}

Schedule tree_broadcast(const Party& party, int root) {
  const int n = static_cast<int>(party.members.size()), own = (party.rank - root + n) % n;
  const auto bits = [](int value) { return std::bit_width(static_cast<unsigned>(value)); };
  std::vector<Hop> sends;
  for (int step = bits(own); own + (1 << step) < n; ++step)
    sends.push_back({step, own + (1 << step)});
  const int came = bits(own) - 1;
  return relay(party, root, bits(n - 1), {came, own == 0 ? 0 : own - (1 << came)}, sends);
}

Schedule reduce_to(const Party& party, int root) {
  Schedule schedule = reduce_scatter(party);
  schedule.back().take = Take::kKeep;
  append(schedule, gather_to(party, root));
  schedule.back().make = Make::kReduce;
  schedule.back().stage = static_cast<std::uint8_t>(party.grid.dimensions());
  return schedule;
}

// The last rank begins. Each other rank creates its own message while the sum arrives, and adds
// both in the next step.
Schedule chain_reduce(const Party& party, int root) {
  const int n = static_cast<int>(party.members.size()), own = (party.rank - root + n) % n;
  const auto with = [&](int peer) {
    return Parcel{party.rank_at((peer + root) % n), party.first_shard};
  };
  Schedule schedule(static_cast<std::size_t>(n - 1),
                    Step{.first_shard = party.first_shard, .relays = true});
  const auto begin = schedule.begin() + std::max(n - 2 - own, 0);
  begin->shard_count = 1;
  if (own == n - 1) {
    begin->sends = {with(own - 1)};
    return schedule;
  }
  begin->sends = {with(own)};
  begin->receives = {with(own), with(own + 1)};
  std::ranges::sort(begin->receives, {}, &Parcel::peer);
  if (own == 0) return schedule;
  begin->take = Take::kKeep;
  Step& sum = *std::next(begin);
  sum.make = Make::kReduce;
  sum.shard_count = 1;
  sum.sends = {with(own - 1)};
  sum.stage = 1;
  return schedule;
}

Schedule gather_to(const Party& party, int root) {
  Step step{.first_shard = party.first_shard};
  const int dimensions = party.grid.dimensions();
  if (party.owns()) {
    step.sends.push_back(parcel(party, root, party.rank, dimensions));
    make_shards(step, party, party.grid.shards_after(party.rank, dimensions));
  }
  for (int group_rank = 0; party.rank == root && group_rank < party.grid.owners(); ++group_rank)
    step.receives.push_back(parcel(party, group_rank, group_rank, dimensions));
  std::ranges::sort(step.receives, {}, &Parcel::shard);
  return {step};
}

Schedule scatter_from(const Party& party, int root) {
  Step step{.first_shard = party.first_shard};
  if (party.rank == root) {
    const auto group_size = static_cast<int>(party.members.size());
    for (const int group_rank : in_turn(all_ranks(group_size), root))
      step.sends.push_back(parcel(party, group_rank, group_rank, party.grid.dimensions()));
    step.shard_count = step.sends.size();
  }
  step.receives.push_back(parcel(party, root, party.rank, party.grid.dimensions()));
  return {step};
}

std::size_t shard_to(const Party& party, int group_rank) {
  const int first = party.grid.digits().front(), groups = party.grid.owners() / first;
  return party.first_shard +
         static_cast<std::size_t>(group_rank % first * groups + group_rank / first);
}

std::size_t shard_from(const Party& party, int group_rank) {
  const std::size_t before = party.grid.digits().size() * party.members.size();
  return party.first_shard + before + static_cast<std::size_t>(group_rank);
}

Schedule all_to_all(const Party& party) {
  Schedule schedule;
  for (int i = 0; i < party.grid.dimensions(); ++i) schedule.push_back(deal_out(party, i));
  schedule.back().take = Take::kDecode;
  return schedule;
}

Schedule send_to(const Party& party, int from, int to) {
  const auto with = [&](int group_rank) {
    return Parcel{party.rank_at(group_rank), party.first_shard};
  };
  Step step{.first_shard = party.first_shard};
  if (party.rank == from) step.sends = {with(to)};
  if (party.rank == to) step.receives = {with(from)};
  step.shard_count = step.sends.size();
  return {step};
}

Schedule allreduce_by(std::span<const Exchange> rounds, const Party& party) {
  Schedule schedule;
  for (std::size_t round = 0; round < rounds.size(); ++round) {
    Schedule steps = by(rounds[round], party);
    for (Step& step : steps) step.round = static_cast<std::uint8_t>(round);
    if (round + 1 < rounds.size()) steps.back().take = Take::kAbsorb;
    append(schedule, std::move(steps));
  }
  return schedule;
}

Schedule reduce_scatter_by(std::span<const Exchange> rounds, const Party& party) {
  Schedule schedule = allreduce_by(rounds, party);
  if (rounds.back() != Exchange::kTwoShot) return schedule;
  schedule.resize(schedule.size() - static_cast<std::size_t>(party.grid.dimensions()));
  schedule.back().take = Take::kDecode;
  return schedule;
}

int shards_of(Exchange last, int ranks, const Grid& grid) {
  if (last == Exchange::kGather) return 1;
  return last == Exchange::kTwoShot ? grid.owners() : ranks;
}

Schedule hierarchical(const HostGroups& groups, int rank, std::span<const Exchange> between) {
  Party within = neighbours(groups, rank);
  Schedule schedule = reduce_scatter(within);
  append(schedule, allreduce_by(between, host_shard_owners(groups, rank)));
  within.first_shard = static_cast<std::size_t>(
      groups.host_shards() + shards_of(between.back(), groups.hosts(), groups.grid()));
  append(schedule, all_gather(within));
  return schedule;
}

Schedule hierarchical_reduce_scatter(const HostGroups& groups, int rank) {
  Schedule schedule = reduce_scatter(neighbours(groups, rank));
  Party owners = host_shard_owners(groups, rank);
  owners.grid = Grid(groups.hosts());
  append(schedule, reduce_scatter(owners));
  return schedule;
}

}  // namespace tersor
