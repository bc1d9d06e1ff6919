#include "comm/collectives/planner.h"

#include "comm/collectives/choose.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

namespace tersor {
namespace {

std::vector<Piece> pieces_of(const Shards& shards) {
  std::vector<Piece> pieces;
  for (const Shard& shard : shards)
    for (const FramePlan& frame : shard.frames)
      pieces.insert(pieces.end(), frame.pieces.begin(), frame.pieces.end());
  return pieces;
}

void append(Shards& shards, Shards more) { std::ranges::move(more, std::back_inserter(shards)); }

/// Removes the messages of shards without frames.
Schedule without_empty(Schedule schedule, const Shards& shards) {
  const auto empty = [&](const StepMessage& message) {
    return shards[message.shard].frames.empty();
  };
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
Grid Planner::grid(const ExchangeParameter& param) const {
  if (climbs(param)) return groups().grid();
  return param.collective == Collective::kReduceScatter ? Grid(shape_.ranks.count)
                                                        : shape_.ranks.grid;
}

// The context for an exchange of all ranks.
PlanContext Planner::context(const ExchangeParameter& param) const {
  return {.params = shape_.params,
          .ranks = shape_.ranks.count,
          .grid = grid(param),
          .group_rank = shape_.ranks.rank,
          .threads = shape_.thread_count(),
          .memory = shape_.memory,
          .adds = static_cast<float>(shape_.ranks.count)};
}

PlanContext Planner::encoded_context(int host_shard, const ExchangeParameter& param) const {
  PlanContext context = this->context(param);
  if (!climbs(param)) return context;
  context.ranks = encoding_ranks(param);
  context.group_rank = index_in(groups().owners(host_shard), shape_.ranks.rank);
  context.sharding = {host_shard, groups().host_shards()};
  context.source = Source::kOfHost;
  context.adds /= host_share();
  return context;
}

Owed Planner::owed(const ExchangeParameter& param) const {
  const PlanContext context = encoded_context(0, param);
  return owed_over(context.grid, context.adds, climbs(param) ? host_share() : 1.0f);
}

// Sums within a host continue between hosts. The returned results are already means.
PlanContext Planner::host_context(Source source) const {
  return {.params = shape_.params,
          .ranks = static_cast<int>(groups().neighbours(shape_.ranks.rank).size()),
          .group_rank = groups().local_rank(shape_.ranks.rank),
          .threads = shape_.thread_count(),
          .source = source,
          .codec = &shape_.ranks.hierarchy->codec(),
          .memory = shape_.memory,
          .adds = source == Source::kToHost ? host_share() : 1.0f};
}

// A library adding values in place divides the values by itself.
bool Planner::stays_whole(const ExchangeParameter& param, Algorithm algorithm) const {
  return algorithm == Algorithm::kNative && shape_.queues &&
         adds_in_place(*param.codec, param.dtype);
}

std::vector<Exchange> Planner::exchanges(const ExchangeParameter& param,
                                         Algorithm algorithm) const {
  return exchanges_of(*param.codec, param.dtype, encoding_ranks(param), algorithm);
}

Schedule Planner::schedule(const ExchangeParameter& param, std::span<const Exchange> rounds) const {
  if (climbs(param)) return hierarchical(groups(), shape_.ranks.rank, rounds);
  const Group all = everybody(shape_.ranks.rank, grid(param));
  return param.collective == Collective::kReduceScatter ? reduce_scatter_by(rounds, all)
                                                        : allreduce_by(rounds, all);
}

std::vector<ChunkPlan> Planner::chunks(const Schedule& schedule, std::vector<Shards> shards) const {
  const auto shared = std::make_shared<const Schedule>(schedule);
  std::vector<ChunkPlan> plans;
  for (Shards& chunk : shards) plans.push_back(make_chunk(shared, std::move(chunk), shape_.memory));
  return plans;
}

// The pieces exchanged between hosts are also the pieces exchanged with the owner within a host.
Shards Planner::with_hosts(std::vector<Shards> host_shards) const {
  std::vector<std::vector<Piece>> pieces;
  for (const Shards& host_shard : host_shards) pieces.push_back(pieces_of(host_shard));
  const auto own = static_cast<std::size_t>(groups().local_rank(shape_.ranks.rank));
  Shards shards = plan_pieces(host_context(Source::kToHost), pieces);
  append(shards, own < host_shards.size() ? std::move(host_shards[own])
                                          : Shards(host_shards.front().size()));
  append(shards, plan_pieces(host_context(Source::kOfHost), pieces));
  return shards;
}

ChunkPlan Planner::whole(std::span<const std::uint32_t> params, Algorithm algorithm) const {
  const ExchangeParameter& first = this->params()[params.front()];
  if (scatters_by_hosts(first)) return whole_scattered(params);
  const auto rounds = exchanges(first, algorithm);
  std::vector<Shards> host_shards;
  const int count = climbs(first) ? groups().host_shards() : 1;
  for (int host_shard = 0; host_shard < count; ++host_shard)
    host_shards.push_back(plan_whole(encoded_context(host_shard, first), params, rounds.back()));
  Shards shards =
      climbs(first) ? with_hosts(std::move(host_shards)) : std::move(host_shards.front());
  return std::move(chunks(schedule(first, rounds), {std::move(shards)}).front());
}

std::vector<ChunkPlan> Planner::cut(std::uint32_t param, Algorithm algorithm,
                                    std::size_t chunk_count) const {
  const ExchangeParameter& own = params()[param];
  if (scatters_by_hosts(own)) return scattered(shares(param), chunk_count);
  const auto rounds = exchanges(own, algorithm);
  if (stays_whole(own, algorithm))
    chunk_count = std::max(chunk_count, encoding_ranks(own) * align_up(own.count, own.unit()));
  if (!climbs(own))
    return chunks(schedule(own, rounds),
                  plan_cut(encoded_context(0, own), param, rounds.back(), chunk_count));
  return chunks(schedule(own, rounds), cut_host_shards(param, rounds.back(), chunk_count));
}

/// The range of a parameter for each rank.
std::vector<Piece> Planner::shares(std::uint32_t param) const {
  std::vector<Piece> shares;
  for (int rank = 0; rank < shape_.ranks.count; ++rank)
    shares.push_back({param, shard_range(params()[param].count, rank, shape_.ranks.count)});
  return shares;
}

ChunkPlan Planner::whole_scattered(std::span<const std::uint32_t> params) const {
  std::vector<std::vector<Piece>> all(static_cast<std::size_t>(shape_.ranks.count));
  for (const std::uint32_t param : params) {
    const std::vector<Piece> own = shares(param);
    for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank].push_back(own[rank]);
  }
  const Schedule schedule = hierarchical_reduce_scatter(groups(), shape_.ranks.rank);
  return std::move(chunks(schedule, {scattered_shards(all)}).front());
}

// Host shards differ by a unit at most. One host shard may therefore have an additional chunk.
std::vector<Shards> Planner::cut_host_shards(std::uint32_t param, Exchange last,
                                             std::size_t chunk_count) const {
  const auto host_shards = static_cast<std::size_t>(groups().host_shards());
  const auto shard_count = static_cast<std::size_t>(
      shards_of(last, encoding_ranks(params()[param]), grid(params()[param])));
  std::vector<std::vector<Shards>> of_host_shard;
  std::size_t chunks = 0;
  for (std::size_t host_shard = 0; host_shard < host_shards; ++host_shard) {
    of_host_shard.push_back(plan_cut(encoded_context(static_cast<int>(host_shard), params()[param]),
                                     param, last, chunk_count / host_shards));
    chunks = std::max(chunks, of_host_shard.back().size());
  }
  std::vector<Shards> shards;
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    std::vector<Shards> host_shard_parts;
    for (std::vector<Shards>& host_shard : of_host_shard)
      host_shard_parts.push_back(chunk < host_shard.size() ? std::move(host_shard[chunk])
                                                           : Shards(shard_count));
    shards.push_back(with_hosts(std::move(host_shard_parts)));
  }
  return shards;
}

std::vector<ChunkPlan> Planner::cut_by(const Schedule& schedule, Exchange last,
                                       std::size_t chunk_count) const {
  return chunks(schedule, plan_cut(encoded_context(0, params().front()), 0, last, chunk_count));
}

std::vector<ChunkPlan> Planner::by_rank(const Group& group, const Schedule& schedule,
                                        std::size_t chunk_count) const {
  PlanContext context = this->context(params().front());
  context.grid = group.grid;
  return chunks(schedule, plan_params(context, shard_owners(group), chunk_count));
}

Shards Planner::scattered_shards(std::span<const std::vector<Piece>> shares) const {
  const int group_rank = groups().local_rank(shape_.ranks.rank);
  std::vector<std::vector<Piece>> within(static_cast<std::size_t>(groups().host_shards())), between;
  for (std::size_t i = 0; i < within.size(); ++i)
    for (const int owner : groups().owners(static_cast<int>(i)))
      std::ranges::copy(shares[static_cast<std::size_t>(owner)], std::back_inserter(within[i]));
  for (const int owner : groups().owners(group_rank))
    between.push_back(shares[static_cast<std::size_t>(owner)]);
  Shards shards = plan_pieces(host_context(Source::kToHost), within);
  const ExchangeParameter& param = params()[shares.front().front().param];
  append(shards, plan_pieces(encoded_context(group_rank, param), between));
  return shards;
}

// Uses shorter chunks on few ranks to keep a host's sums in the caches.
std::vector<ChunkPlan> Planner::scattered(std::span<const Piece> shares,
                                          std::size_t chunk_count) const {
  constexpr std::size_t kCachedShard = std::size_t{1} << 14;
  chunk_count = std::min(chunk_count, kCachedShard * shares.size());
  std::vector<Shards> shards;
  for (const std::vector<Piece>& chunk : cut_pieces(params(), shares, chunk_count)) {
    std::vector<std::vector<Piece>> cut;
    for (const Piece& piece : chunk) cut.push_back({piece});
    shards.push_back(scattered_shards(cut));
  }
  return chunks(hierarchical_reduce_scatter(groups(), shape_.ranks.rank), std::move(shards));
}

// Frames between two ranks contain the row counts of both directions. Both ranks therefore detect
// different counts.
std::uint64_t Planner::signature_with(std::size_t peer, std::size_t sent,
                                      std::size_t received) const {
  const bool first = shape_.ranks.rank < static_cast<int>(peer);
  return Signature()
      .add(shape_.signature)
      .add(static_cast<std::uint64_t>(first ? sent : received))
      .add(static_cast<std::uint64_t>(first ? received : sent))
      .value();
}

void Planner::name_rows(const Group& group, std::size_t columns, Shards& shards) const {
  for (int group_rank = 0; group_rank < shape_.ranks.count; ++group_rank) {
    const std::size_t to = shard_to(group, group_rank), from = shard_from(group, group_rank);
    const int peer = group.rank_at(group_rank);
    shards[to].group_rank = shape_.ranks.rank + shape_.ranks.count * peer;
    shards[to].signature = shards[from].signature =
        signature_with(static_cast<std::size_t>(peer), params()[to].count / columns,
                       params()[from].count / columns);
    shards[from].maker = peer;
  }
}

// Sends all rows at once on a grid, because ranks forward rows of other ranks, and on devices.
std::size_t Planner::rows_at_once(const Group& group, std::size_t columns,
                                  std::size_t chunk_count) const {
  if (group.grid.dimensions() > 1 || shape_.on_device())
    return std::numeric_limits<std::size_t>::max() / columns;
  const std::size_t rows = ceil_div(shard_length(chunk_count, group.members.size()), columns);
  return align_up(rows, std::max<std::size_t>(1, joined_rows(params().front(), columns)));
}

std::vector<ChunkPlan> Planner::by_rows(const Group& group, std::size_t columns,
                                        std::size_t chunk_count) const {
  PlanContext context = this->context(params().front());
  context.grid = shape_.ranks.grid;
  context.ranks = 1;  // a receiver decodes one rank's message at a time
  const std::size_t longest =
      std::ranges::max(params(), {}, &ExchangeParameter::count).count / columns;
  const std::size_t step = rows_at_once(group, columns, chunk_count);
  std::vector<ChunkPlan> plans;
  for (std::size_t first = 0; first == 0 || first < longest; first += step) {
    Shards shards = plan_rows(context, columns, {first, step});
    name_rows(group, columns, shards);
    const auto schedule =
        std::make_shared<const Schedule>(without_empty(all_to_all(group), shards));
    plans.push_back(make_chunk(schedule, std::move(shards), shape_.memory));
    plans.back().followed = longest - first > step;
  }
  return plans;
}

}  // namespace tersor
