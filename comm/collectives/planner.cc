#include "comm/collectives/planner.h"

#include "comm/collectives/choose.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

namespace tersor {
namespace {

std::vector<Piece> pieces_of(const Lanes& lanes) {
  std::vector<Piece> pieces;
  for (const Lane& lane : lanes)
    for (const FramePlan& frame : lane.frames)
      pieces.insert(pieces.end(), frame.pieces.begin(), frame.pieces.end());
  return pieces;
}

void append(Lanes& lanes, Lanes more) { std::ranges::move(more, std::back_inserter(lanes)); }

/// Removes the messages of shards without frames.
Schedule without_empty(Schedule schedule, const Lanes& lanes) {
  const auto empty = [&](const Parcel& parcel) { return lanes[parcel.lane].frames.empty(); };
  for (Step& step : schedule) {
    std::erase_if(step.sends, empty);
    std::erase_if(step.receives, empty);
  }
  return schedule;
}

}  // namespace

Owed owed_over(const Grid& grid, float adds, float sender) {
  const Shares shares = grid.shares(adds);
  Owed owed{.sender = sender};
  float share = sender;
  for (std::size_t i = 0; i < owed.owner.size(); ++i) owed.owner[i] = share *= shares[i];
  return owed;
}

// A reduce-scatter has one shard per rank.
Grid Planner::grid(const Slot& slot) const {
  if (climbs(slot)) return groups().grid();
  return slot.collective == Collective::kReduceScatter ? Grid(context_.ranks) : context_.grid;
}

// The context for an exchange of all ranks.
PlanContext Planner::context(const Slot& slot) const {
  return {.slots = context_.slots,
          .ranks = context_.ranks,
          .grid = grid(slot),
          .place = context_.rank,
          .threads = context_.thread_count(),
          .memory = context_.memory,
          .adds = static_cast<float>(context_.ranks)};
}

PlanContext Planner::encoded_context(int shard, const Slot& slot) const {
  PlanContext context = this->context(slot);
  if (!climbs(slot)) return context;
  context.ranks = encoding_ranks(slot);
  context.place = index_in(groups().owners(shard), context_.rank);
  context.sharding = {shard, groups().shards()};
  context.carried = Carried::kOfHost;
  context.adds /= host_share();
  return context;
}

Owed Planner::owed(const Slot& slot) const {
  const PlanContext context = encoded_context(0, slot);
  return owed_over(context.grid, context.adds, climbs(slot) ? host_share() : 1.0f);
}

// Sums within a host continue between hosts. The returned results are already means.
PlanContext Planner::host_context(Carried carried) const {
  return {.slots = context_.slots,
          .ranks = static_cast<int>(groups().neighbours(context_.rank).size()),
          .place = groups().place(context_.rank),
          .threads = context_.thread_count(),
          .carried = carried,
          .codec = &context_.hierarchy->codec(),
          .memory = context_.memory,
          .adds = carried == Carried::kToHost ? host_share() : 1.0f};
}

// A library adding values in place divides the values by itself.
bool Planner::stays_whole(const Slot& slot, Algorithm algorithm) const {
  return algorithm == Algorithm::kNative && context_.queues() &&
         adds_in_place(*slot.codec, slot.dtype);
}

std::vector<Exchange> Planner::exchanges(const Slot& slot, Algorithm algorithm) const {
  return exchanges_of(*slot.codec, slot.dtype, encoding_ranks(slot), algorithm);
}

Schedule Planner::schedule(const Slot& slot, std::span<const Exchange> rounds) const {
  if (climbs(slot)) return hierarchical(groups(), context_.rank, rounds);
  const Party all = everybody(context_.rank, grid(slot));
  return slot.collective == Collective::kReduceScatter ? reduce_scatter_by(rounds, all)
                                                       : allreduce_by(rounds, all);
}

std::vector<ChunkPlan> Planner::chunks(const Schedule& schedule, std::vector<Lanes> lanes) const {
  const auto shared = std::make_shared<const Schedule>(schedule);
  std::vector<ChunkPlan> plans;
  for (Lanes& chunk : lanes) plans.push_back(make_chunk(shared, std::move(chunk), context_.memory));
  return plans;
}

// The pieces exchanged between hosts are also the pieces exchanged with the owner within a host.
Lanes Planner::with_hosts(std::vector<Lanes> shards) const {
  std::vector<std::vector<Piece>> pieces;
  for (const Lanes& shard : shards) pieces.push_back(pieces_of(shard));
  const auto own = static_cast<std::size_t>(groups().place(context_.rank));
  Lanes lanes = plan_pieces(host_context(Carried::kToHost), pieces);
  append(lanes, own < shards.size() ? std::move(shards[own]) : Lanes(shards.front().size()));
  append(lanes, plan_pieces(host_context(Carried::kOfHost), pieces));
  return lanes;
}

ChunkPlan Planner::whole(std::span<const std::uint32_t> slots, Algorithm algorithm) const {
  const Slot& first = this->slots()[slots.front()];
  if (scatters_by_hosts(first)) return whole_scattered(slots);
  const auto rounds = exchanges(first, algorithm);
  std::vector<Lanes> shards;
  const int count = climbs(first) ? groups().shards() : 1;
  for (int shard = 0; shard < count; ++shard)
    shards.push_back(plan_whole(encoded_context(shard, first), slots, rounds.back()));
  Lanes lanes = climbs(first) ? with_hosts(std::move(shards)) : std::move(shards.front());
  return std::move(chunks(schedule(first, rounds), {std::move(lanes)}).front());
}

std::vector<ChunkPlan> Planner::cut(std::uint32_t slot, Algorithm algorithm,
                                    std::size_t chunk_count) const {
  const Slot& own = slots()[slot];
  if (scatters_by_hosts(own)) return scattered(shares(slot), chunk_count);
  const auto rounds = exchanges(own, algorithm);
  if (stays_whole(own, algorithm))
    chunk_count = std::max(chunk_count, encoding_ranks(own) * align_up(own.count, own.unit()));
  if (!climbs(own))
    return chunks(schedule(own, rounds),
                  plan_cut(encoded_context(0, own), slot, rounds.back(), chunk_count));
  return chunks(schedule(own, rounds), cut_shards(slot, rounds.back(), chunk_count));
}

/// The range of a slot for each rank.
std::vector<Piece> Planner::shares(std::uint32_t slot) const {
  std::vector<Piece> shares;
  for (int rank = 0; rank < context_.ranks; ++rank)
    shares.push_back({slot, shard_range(slots()[slot].count, rank, context_.ranks)});
  return shares;
}

ChunkPlan Planner::whole_scattered(std::span<const std::uint32_t> slots) const {
  std::vector<std::vector<Piece>> all(static_cast<std::size_t>(context_.ranks));
  for (const std::uint32_t slot : slots) {
    const std::vector<Piece> own = shares(slot);
    for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank].push_back(own[rank]);
  }
  const Schedule schedule = hierarchical_reduce_scatter(groups(), context_.rank);
  return std::move(chunks(schedule, {scattered_lanes(all)}).front());
}

// Host shards differ by a unit at most. One host shard may therefore have an additional chunk.
std::vector<Lanes> Planner::cut_shards(std::uint32_t slot, Exchange last,
                                       std::size_t chunk_count) const {
  const auto shards = static_cast<std::size_t>(groups().shards());
  const auto lane_count =
      static_cast<std::size_t>(lanes_of(last, encoding_ranks(slots()[slot]), grid(slots()[slot])));
  std::vector<std::vector<Lanes>> of_shard;
  std::size_t chunks = 0;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    of_shard.push_back(plan_cut(encoded_context(static_cast<int>(shard), slots()[slot]), slot, last,
                                chunk_count / shards));
    chunks = std::max(chunks, of_shard.back().size());
  }
  std::vector<Lanes> lanes;
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    std::vector<Lanes> shard_lanes;
    for (std::vector<Lanes>& shard : of_shard)
      shard_lanes.push_back(chunk < shard.size() ? std::move(shard[chunk]) : Lanes(lane_count));
    lanes.push_back(with_hosts(std::move(shard_lanes)));
  }
  return lanes;
}

std::vector<ChunkPlan> Planner::cut_by(const Schedule& schedule, Exchange last,
                                       std::size_t chunk_count) const {
  return chunks(schedule, plan_cut(encoded_context(0, slots().front()), 0, last, chunk_count));
}

std::vector<ChunkPlan> Planner::by_rank(const Party& party, const Schedule& schedule,
                                        std::size_t chunk_count) const {
  PlanContext context = this->context(slots().front());
  context.grid = party.grid;
  return chunks(schedule, plan_slots(context, lane_owners(party), chunk_count));
}

Lanes Planner::scattered_lanes(std::span<const std::vector<Piece>> shares) const {
  const int place = groups().place(context_.rank);
  std::vector<std::vector<Piece>> within(static_cast<std::size_t>(groups().shards())), between;
  for (std::size_t i = 0; i < within.size(); ++i)
    for (const int owner : groups().owners(static_cast<int>(i)))
      std::ranges::copy(shares[static_cast<std::size_t>(owner)], std::back_inserter(within[i]));
  for (const int owner : groups().owners(place))
    between.push_back(shares[static_cast<std::size_t>(owner)]);
  Lanes lanes = plan_pieces(host_context(Carried::kToHost), within);
  const Slot& slot = slots()[shares.front().front().slot];
  append(lanes, plan_pieces(encoded_context(place, slot), between));
  return lanes;
}

// Uses shorter chunks on few ranks to keep a host's sums in the caches.
std::vector<ChunkPlan> Planner::scattered(std::span<const Piece> shares,
                                          std::size_t chunk_count) const {
  constexpr std::size_t kCachedLane = std::size_t{1} << 14;
  chunk_count = std::min(chunk_count, kCachedLane * shares.size());
  std::vector<Lanes> lanes;
  for (const std::vector<Piece>& chunk : cut_pieces(slots(), shares, chunk_count)) {
    std::vector<std::vector<Piece>> cut;
    for (const Piece& piece : chunk) cut.push_back({piece});
    lanes.push_back(scattered_lanes(cut));
  }
  return chunks(hierarchical_reduce_scatter(groups(), context_.rank), std::move(lanes));
}

// Frames between two ranks contain the row counts of both directions. Both ranks therefore detect
// different counts.
std::uint64_t Planner::signature_with(std::size_t peer, std::size_t sent,
                                      std::size_t received) const {
  const bool first = context_.rank < static_cast<int>(peer);
  return Signature()
      .add(context_.signature)
      .add(static_cast<std::uint64_t>(first ? sent : received))
      .add(static_cast<std::uint64_t>(first ? received : sent))
      .value();
}

void Planner::name_rows(const Party& party, std::size_t columns, Lanes& lanes) const {
  for (int place = 0; place < context_.ranks; ++place) {
    const std::size_t to = lane_to(party, place), from = lane_from(party, place);
    const int peer = party.rank_at(place);
    lanes[to].place = context_.rank + context_.ranks * peer;
    lanes[to].signature = lanes[from].signature = signature_with(
        static_cast<std::size_t>(peer), slots()[to].count / columns, slots()[from].count / columns);
    lanes[from].maker = peer;
  }
}

// Sends all rows at once on a grid, because ranks forward rows of other ranks, and on devices.
std::size_t Planner::rows_at_once(const Party& party, std::size_t columns,
                                  std::size_t chunk_count) const {
  if (party.grid.dimensions() > 1 || context_.on_device())
    return std::numeric_limits<std::size_t>::max() / columns;
  const std::size_t rows = ceil_div(lane_length(chunk_count, party.members.size()), columns);
  return align_up(rows, std::max<std::size_t>(1, joined_rows(slots().front(), columns)));
}

std::vector<ChunkPlan> Planner::by_rows(const Party& party, std::size_t columns,
                                        std::size_t chunk_count) const {
  PlanContext context = this->context(slots().front());
  context.grid = context_.grid;
  context.ranks = 1;  // a receiver decodes one rank's message at a time
  const std::size_t longest = std::ranges::max(slots(), {}, &Slot::count).count / columns;
  const std::size_t step = rows_at_once(party, columns, chunk_count);
  std::vector<ChunkPlan> plans;
  for (std::size_t first = 0; first == 0 || first < longest; first += step) {
    Lanes lanes = plan_rows(context, columns, {first, step});
    name_rows(party, columns, lanes);
    const auto schedule = std::make_shared<const Schedule>(without_empty(all_to_all(party), lanes));
    plans.push_back(make_chunk(schedule, std::move(lanes), context_.memory));
    plans.back().followed = longest - first > step;
  }
  return plans;
}

}  // namespace tersor
