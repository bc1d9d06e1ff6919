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
std::vector<int> rotated_after(std::vector<int> group_ranks, int own) {
  const auto self = std::ranges::find(group_ranks, own);
  if (self != group_ranks.end())
    std::rotate(group_ranks.begin(), std::next(self), group_ranks.end());
  return group_ranks;
}

/// The ranks exchanging with this rank in a dimension.
std::vector<int> subgroup_of(const Group& group, int dimension) {
  return group.members.empty() ? std::vector<int>{} : group.grid.subgroup(group.rank, dimension);
}

std::vector<int> owners_of(const Group& group, std::vector<int> subgroup) {
  std::erase_if(subgroup, [&](int group_rank) { return !group.grid.owns(group_rank); });
  return subgroup;
}

/// The message with the shards of a group rank after `dimensions` dimensions, to or from a peer.
StepMessage message(const Group& group, int peer, int group_rank, int dimensions) {
  const ShardRange shards = group.grid.shards_after(group_rank, dimensions);
  return {group.rank_at(peer), group.first_shard + shards.first, shards.count};
}

void set_shards(Step& step, const Group& group, ShardRange shards) {
  step.first_shard = group.first_shard + shards.first;
  step.shard_count = shards.count;
}

/// Sends the results of the earlier dimensions to the owners in this dimension.
Step reduce_step(const Group& group, int dimension) {
  Step step{.on_send = dimension == 0 ? OnSend::kEncode : OnSend::kReduce,
            .first_shard = group.first_shard,
            .on_receive = OnReceive::kRetain,
            .sums = dimension != 0,
            .stage = static_cast<std::uint8_t>(dimension)};
  const std::vector<int> subgroup = subgroup_of(group, dimension);
  for (const int group_rank : owners_of(group, rotated_after(subgroup, group.rank)))
    step.sends.push_back(message(group, group_rank, group_rank, dimension + 1));
  for (const int group_rank : subgroup)
    if (group.owns())
      step.receives.push_back(message(group, group_rank, group.rank, dimension + 1));
  if (!subgroup.empty()) set_shards(step, group, group.grid.shards_after(group.rank, dimension));
  return step;
}

/// Sends each owner's results of the later dimensions to the whole group.
Step gather_step(const Group& group, int dimension) {
  Step step{.on_send = OnSend::kForward,
            .first_shard = group.first_shard,
            .on_receive = dimension == 0 ? OnReceive::kDecode : OnReceive::kRetain,
            .gathers = group.full && group.grid.is_direct(),
            .stage = static_cast<std::uint8_t>(group.grid.dimensions())};
  const std::vector<int> subgroup = subgroup_of(group, dimension);
  for (const int group_rank : rotated_after(subgroup, group.rank))
    if (group.owns()) step.sends.push_back(message(group, group_rank, group.rank, dimension + 1));
  for (const int group_rank : owners_of(group, subgroup))
    step.receives.push_back(message(group, group_rank, group_rank, dimension + 1));
  if (group.owns()) set_shards(step, group, group.grid.shards_after(group.rank, dimension + 1));
  return step;
}

/// A step of an all_to_all: each rank of the group receives the shards routed through it. Shards
/// received in an earlier step are forwarded unchanged. Received shards are stored with gaps, so
/// shards for a rank of the next dimension are contiguous.
Step all_to_all_step(const Group& group, int dimension) {
  const std::size_t n = group.members.size();
  const std::vector<int> subgroup = group.grid.subgroup(group.rank, dimension);
  const std::size_t shards = n / subgroup.size();
  const bool last = dimension + 1 == group.grid.dimensions();
  Step step{.on_send = dimension == 0 ? OnSend::kEncode : OnSend::kForward,
            .first_shard = group.first_shard + static_cast<std::size_t>(dimension) * n,
            .shard_count = n,
            .on_receive = OnReceive::kRetain};
  for (const int group_rank : rotated_after(subgroup, group.rank)) {
    const auto index =
        static_cast<std::size_t>(std::ranges::find(subgroup, group_rank) - subgroup.begin());
    step.sends.push_back({group.rank_at(group_rank), step.first_shard + index * shards, shards});
  }
  for (std::size_t i = 0; i < subgroup.size(); ++i)
    step.receives.push_back({group.rank_at(subgroup[i]),
                             step.first_shard + n + i * (last ? shards : 1), shards,
                             last ? 1 : subgroup.size()});
  return step;
}

/// A message of a broadcast: the step and the peer, counted from the root.
struct Hop {
  int step;
  int peer;
};

// Forwards each message in consecutive steps. Each step also hands the message to the rank itself,
// and the last step decodes the message.
Schedule forward_from_root(const Group& group, int root, int steps, Hop incoming,
                           const std::vector<Hop>& sends) {
  const int n = static_cast<int>(group.members.size());
  const auto rank = [&](int peer) { return group.rank_at((peer + root) % n); };
  const auto with = [&](int peer) { return StepMessage{peer, group.first_shard}; };
  Schedule schedule(static_cast<std::size_t>(steps),
                    Step{.first_shard = group.first_shard, .forwards = true});
  const int own = group.rank_at(group.rank);
  if (group.rank != root) {
    Step& step = schedule[static_cast<std::size_t>(incoming.step)];
    step.receives = {with(rank(incoming.peer))};
    step.on_receive = sends.empty() ? OnReceive::kDecode : OnReceive::kRetain;
  }
  for (const Hop& hop : sends) {
    Step& step = schedule[static_cast<std::size_t>(hop.step)];
    const bool first = hop.step == 0;
    step.on_send = first ? OnSend::kEncode : OnSend::kForward;
    step.shard_count = 1;
    step.sends = {with(rank(hop.peer)), with(own)};
    step.receives = {with(own)};
    step.on_receive = hop.step == sends.back().step ? OnReceive::kDecode : OnReceive::kRetain;
  }
  return schedule;
}

Schedule native(const Group& group, Native native) {
  if (group.members.empty()) return {Step{}};
  return {
      {.first_shard = group.first_shard, .shard_count = group.members.size(), .native = native}};
}

Schedule allreduce_round(Exchange exchange, const Group& group) {
  switch (exchange) {
    case Exchange::kNativeSum:
      return native_sum(group);
    case Exchange::kNativeMaximum:
      return native_maximum(group);
    case Exchange::kTwoShot:
      return two_shot(group);
    case Exchange::kGather:
      return one_shot(group);
  }
  return {};
}

// The ranks of a host. The number of owners is the number of ranks on the smallest host.
Group local_group(const HostGroups& groups, int rank) {
  const std::vector<int>& members = groups.host_members(rank);
  return {.members = members,
          .rank = groups.local_rank(rank),
          .grid = Grid::owned_by_first(groups.host_shards(), static_cast<int>(members.size()))};
}

// The owners of this rank's host shard, if any.
Group host_shard_owners(const HostGroups& groups, int rank) {
  Group group{.grid = groups.grid(), .first_shard = static_cast<std::size_t>(groups.host_shards())};
  if (!groups.encodes(rank)) return group;
  group.members = groups.owners(groups.local_rank(rank));
  group.rank = index_in(group.members, rank);
  return group;
}

}  // namespace

Group full_group(int rank, const Grid& grid) {
  return {.members = all_ranks(grid.group_size()), .rank = rank, .grid = grid, .full = true};
}

Group hierarchical_group(const HostGroups& groups, int rank) {
  const int digits[] = {groups.host_shards(), groups.hosts()};
  Group group{.members = groups.by_host(), .grid = Grid(digits, groups.ranks()), .full = true};
  group.rank = static_cast<int>(std::ranges::find(group.members, rank) - group.members.begin());
  return group;
}

std::vector<int> shard_owners(const Group& group) {
  std::vector<int> owners(group.members.size());
  for (int group_rank = 0; group_rank < group.grid.owners(); ++group_rank)
    owners[group.grid.shards_after(group_rank, group.grid.dimensions()).first] =
        group.rank_at(group_rank);
  return owners;
}

Schedule native_sum(const Group& group) { return native(group, Native::kSum); }

Schedule native_maximum(const Group& group) { return native(group, Native::kMaximum); }

Schedule one_shot(const Group& group) {
  const auto group_size = static_cast<int>(group.members.size());
  Step step{.first_shard = group.first_shard,
            .shard_count = group.members.empty() ? std::size_t{0} : 1,
            .gathers = group.full};
  for (const int group_rank : rotated_after(all_ranks(group_size), group.rank))
    step.sends.push_back({group.rank_at(group_rank), group.first_shard});
  for (const int member : group.members) step.receives.push_back({member, group.first_shard});
  return {step};
}

Schedule reduce_scatter(const Group& group) {
  Schedule schedule;
  for (int i = 0; i < group.grid.dimensions(); ++i) schedule.push_back(reduce_step(group, i));
  schedule.back().on_receive = OnReceive::kDecode;
  return schedule;
}

Schedule all_gather(const Group& group) {
  Schedule schedule;
  for (int i = group.grid.dimensions(); i-- > 0;) schedule.push_back(gather_step(group, i));
  schedule.front().on_send = OnSend::kEncode;
  return schedule;
}

// Each value is quantized once more than the grid has dimensions, for any number of ranks: by the
// sender, and by the owners in each dimension. Sums return unchanged, and owners decode their own
// messages like all ranks, so all ranks get the same bits.
Schedule two_shot(const Group& group) {
  Schedule schedule = reduce_scatter(group);
  schedule.back().on_receive = OnReceive::kRetain;
  append(schedule, all_gather(group));
  const auto gathers = static_cast<std::size_t>(group.grid.dimensions());
  schedule[gathers].on_send = OnSend::kReduce;
  for (Step& step : std::span(schedule).subspan(gathers)) step.sums = true;
  return schedule;
}

Schedule chain_broadcast(const Group& group, int root) {
  const int n = static_cast<int>(group.members.size()), own = (group.rank - root + n) % n;
  std::vector<Hop> sends;
  if (own + 1 < n) sends.push_back({own, own + 1});
  return forward_from_root(group, root, n - 1, {own - 1, own - 1}, sends);
}

Schedule tree_broadcast(const Group& group, int root) {
  const int n = static_cast<int>(group.members.size()), own = (group.rank - root + n) % n;
  const auto bits = [](int value) { return std::bit_width(static_cast<unsigned>(value)); };
  std::vector<Hop> sends;
  for (int step = bits(own); own + (1 << step) < n; ++step)
    sends.push_back({step, own + (1 << step)});
  const int receive_step = bits(own) - 1;
  return forward_from_root(group, root, bits(n - 1),
                           {receive_step, own == 0 ? 0 : own - (1 << receive_step)}, sends);
}

Schedule reduce_to(const Group& group, int root) {
  Schedule schedule = reduce_scatter(group);
  schedule.back().on_receive = OnReceive::kRetain;
  append(schedule, gather_to(group, root));
  schedule.back().on_send = OnSend::kReduce;
  schedule.back().sums = true;
  schedule.back().stage = static_cast<std::uint8_t>(group.grid.dimensions());
  return schedule;
}

// The last rank begins. Each other rank creates its own message while the sum arrives, and adds
// both in the next step.
Schedule chain_reduce(const Group& group, int root) {
  const int n = static_cast<int>(group.members.size()), own = (group.rank - root + n) % n;
  const auto with = [&](int peer) {
    return StepMessage{group.rank_at((peer + root) % n), group.first_shard};
  };
  Schedule schedule(static_cast<std::size_t>(n - 1),
                    Step{.first_shard = group.first_shard, .forwards = true});
  const auto begin = schedule.begin() + std::max(n - 2 - own, 0);
  begin->shard_count = 1;
  if (own == n - 1) {
    begin->sends = {with(own - 1)};
    return schedule;
  }
  begin->sends = {with(own)};
  begin->receives = {with(own), with(own + 1)};
  std::ranges::sort(begin->receives, {}, &StepMessage::peer);
  if (own == 0) return schedule;
  begin->on_receive = OnReceive::kRetain;
  Step& sum = *std::next(begin);
  sum.on_send = OnSend::kReduce;
  sum.shard_count = 1;
  sum.sends = {with(own - 1)};
  sum.stage = 1;
  return schedule;
}

Schedule gather_to(const Group& group, int root) {
  Step step{.first_shard = group.first_shard};
  const int dimensions = group.grid.dimensions();
  if (group.owns()) {
    step.sends.push_back(message(group, root, group.rank, dimensions));
    set_shards(step, group, group.grid.shards_after(group.rank, dimensions));
  }
  for (int group_rank = 0; group.rank == root && group_rank < group.grid.owners(); ++group_rank)
    step.receives.push_back(message(group, group_rank, group_rank, dimensions));
  std::ranges::sort(step.receives, {}, &StepMessage::shard);
  return {step};
}

Schedule scatter_from(const Group& group, int root) {
  Step step{.first_shard = group.first_shard};
  if (group.rank == root) {
    const auto group_size = static_cast<int>(group.members.size());
    for (const int group_rank : rotated_after(all_ranks(group_size), root))
      step.sends.push_back(message(group, group_rank, group_rank, group.grid.dimensions()));
    step.shard_count = step.sends.size();
  }
  step.receives.push_back(message(group, root, group.rank, group.grid.dimensions()));
  return {step};
}

std::size_t shard_to(const Group& group, int group_rank) {
  const int first = group.grid.digits().front(), groups = group.grid.owners() / first;
  return group.first_shard +
         static_cast<std::size_t>(group_rank % first * groups + group_rank / first);
}

std::size_t shard_from(const Group& group, int group_rank) {
  const std::size_t before = group.grid.digits().size() * group.members.size();
  return group.first_shard + before + static_cast<std::size_t>(group_rank);
}

Schedule all_to_all(const Group& group) {
  Schedule schedule;
  for (int i = 0; i < group.grid.dimensions(); ++i) schedule.push_back(all_to_all_step(group, i));
  schedule.back().on_receive = OnReceive::kDecode;
  return schedule;
}

Schedule send_to(const Group& group, int from, int to) {
  const auto with = [&](int group_rank) {
    return StepMessage{group.rank_at(group_rank), group.first_shard};
  };
  Step step{.first_shard = group.first_shard};
  if (group.rank == from) step.sends = {with(to)};
  if (group.rank == to) step.receives = {with(from)};
  step.shard_count = step.sends.size();
  return {step};
}

Schedule allreduce_by(std::span<const Exchange> rounds, const Group& group) {
  Schedule schedule;
  for (std::size_t round = 0; round < rounds.size(); ++round) {
    Schedule steps = allreduce_round(rounds[round], group);
    for (Step& step : steps) step.round = static_cast<std::uint8_t>(round);
    if (round + 1 < rounds.size()) steps.back().on_receive = OnReceive::kAbsorb;
    append(schedule, std::move(steps));
  }
  return schedule;
}

Schedule reduce_scatter_by(std::span<const Exchange> rounds, const Group& group) {
  Schedule schedule = allreduce_by(rounds, group);
  if (rounds.back() != Exchange::kTwoShot) return schedule;
  schedule.resize(schedule.size() - static_cast<std::size_t>(group.grid.dimensions()));
  schedule.back().on_receive = OnReceive::kDecode;
  return schedule;
}

int shards_of(Exchange last, int ranks, const Grid& grid) {
  if (last == Exchange::kGather) return 1;
  return last == Exchange::kTwoShot ? grid.owners() : ranks;
}

Schedule hierarchical(const HostGroups& groups, int rank, std::span<const Exchange> between) {
  Group within = local_group(groups, rank);
  Schedule schedule = reduce_scatter(within);
  append(schedule, allreduce_by(between, host_shard_owners(groups, rank)));
  within.first_shard = static_cast<std::size_t>(
      groups.host_shards() + shards_of(between.back(), groups.hosts(), groups.grid()));
  append(schedule, all_gather(within));
  return schedule;
}

Schedule hierarchical_reduce_scatter(const HostGroups& groups, int rank) {
  Schedule schedule = reduce_scatter(local_group(groups, rank));
  Group owners = host_shard_owners(groups, rank);
  owners.grid = Grid(groups.hosts());
  append(schedule, reduce_scatter(owners));
  return schedule;
}

}  // namespace tersor
