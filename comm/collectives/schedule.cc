// See schedule.h.
#include "comm/collectives/schedule.h"

#include <numeric>
#include <utility>

namespace tersor {
namespace {

void append(Schedule& schedule, Schedule steps) {
  schedule.insert(schedule.end(), steps.begin(), steps.end());
}

// The members by the order in which this rank sends to them: the next one first, itself last, so
// that not all send to the same one at the same time.
std::vector<std::size_t> in_turn(const Party& party) {
  std::vector<std::size_t> members;
  for (std::size_t i = 1; i <= party.members.size(); ++i)
    members.push_back((static_cast<std::size_t>(party.place) + i) % party.members.size());
  return members;
}

/// Every lane of the party to its owner.
Step to_owners(const Party& party, Take take) {
  Step step{.first_lane = party.first_lane, .take = take};
  for (const std::size_t i : in_turn(party))
    if (party.owned(i)) step.sends.push_back({party.members[i], party.first_lane + i});
  for (const int member : party.members)
    if (party.owns()) step.receives.push_back({member, party.own_lane()});
  step.lane_count = step.sends.size();
  return step;
}

/// Every owner's lane to the whole party.
Step to_everybody(const Party& party, Make make) {
  Step step{.make = make, .first_lane = party.own_lane(), .gathers = party.whole};
  for (const std::size_t i : in_turn(party))
    if (party.owns()) step.sends.push_back({party.members[i], party.own_lane()});
  for (std::size_t i = 0; i < party.members.size(); ++i)
    if (party.owned(i)) step.receives.push_back({party.members[i], party.first_lane + i});
  step.lane_count = party.owns() ? 1 : 0;
  return step;
}

Schedule native(const Party& party, Native native) {
  if (party.members.empty()) return {Step{}};
  return {{.first_lane = party.first_lane, .lane_count = party.members.size(), .native = native}};
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

// The ranks of one host. As many own a shard as the smallest host has ranks.
Party neighbours(const HostGroups& groups, int rank) {
  return {
      .members = groups.neighbours(rank), .place = groups.place(rank), .owners = groups.shards()};
}

// The owners of this rank's shard, where it has one.
Party shard_owners(const HostGroups& groups, int rank) {
  Party party{.owners = groups.hosts(), .first_lane = static_cast<std::size_t>(groups.shards())};
  if (!groups.encodes(rank)) return party;
  party.members = groups.owners(groups.place(rank));
  party.place = index_in(party.members, rank);
  return party;
}

}  // namespace

Party everybody(int rank, int ranks) {
  Party party{.place = rank, .owners = ranks, .whole = true};
  party.members.resize(static_cast<std::size_t>(ranks));
  std::iota(party.members.begin(), party.members.end(), 0);
  return party;
}

Schedule native_sum(const Party& party) { return native(party, Native::kSum); }

Schedule native_maximum(const Party& party) { return native(party, Native::kMaximum); }

Schedule one_shot(const Party& party) {
  Step step{.first_lane = party.first_lane,
            .lane_count = party.members.empty() ? std::size_t{0} : 1,
            .gathers = party.whole};
  for (const std::size_t i : in_turn(party))
    step.sends.push_back({party.members[i], party.first_lane});
  for (const int member : party.members) step.receives.push_back({member, party.first_lane});
  return {step};
}

Schedule reduce_scatter(const Party& party) { return {to_owners(party, Take::kDecode)}; }

Schedule all_gather(const Party& party) { return {to_everybody(party, Make::kEncode)}; }

// Quantised twice, whatever the number of ranks: by each sender, and by the owner of the sum. The
// owner takes its own message as everybody does, so that all end with the same bits.
Schedule two_shot(const Party& party) {
  return {to_owners(party, Take::kKeep), to_everybody(party, Make::kReduce)};
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
  schedule.pop_back();
  schedule.back().take = Take::kDecode;
  return schedule;
}

int lanes_of(Exchange last, int ranks) { return last == Exchange::kGather ? 1 : ranks; }

Schedule hierarchical(const HostGroups& groups, int rank, std::span<const Exchange> between) {
  Party within = neighbours(groups, rank);
  Schedule schedule = reduce_scatter(within);
  append(schedule, allreduce_by(between, shard_owners(groups, rank)));
  within.first_lane =
      static_cast<std::size_t>(groups.shards() + lanes_of(between.back(), groups.hosts()));
  append(schedule, all_gather(within));
  return schedule;
}

}  // namespace tersor
