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

ResidualScales scales_over(const Grid& grid, float addends, float sender) {
  const Divisors divisors = grid.divisors(addends);
  ResidualScales scales{.sender = sender};
  float share = sender;
  for (std::size_t i = 0; i < scales.owner.size(); ++i) scales.owner[i] = share *= divisors[i];
  return scales;
}

// A reduce-scatter has one shard per rank.
Grid Planner::grid(const ExchangeParameter& param) const {
  if (is_hierarchical(param)) return groups().grid();
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
          .addends = static_cast<float>(shape_.ranks.count)};
}

PlanContext Planner::encoded_context(int host_shard, const ExchangeParameter& param) const {
  PlanContext context = this->context(param);
  if (!is_hierarchical(param)) return context;
  context.ranks = encoding_ranks(param);
  context.group_rank = index_in(groups().owners(host_shard), shape_.ranks.rank);
  context.sharding = {host_shard, groups().host_shards()};
  context.source = Source::kHostSum;
  context.addends /= max_ranks_per_host();
  return context;
}

ResidualScales Planner::residual_scales(const ExchangeParameter& param) const {
  const PlanContext context = encoded_context(0, param);
  return scales_over(context.grid, context.addends,
                     is_hierarchical(param) ? max_ranks_per_host() : 1.0f);
}

// Sums within a host continue between hosts. The returned results are already means.
PlanContext Planner::intra_host_context(Source source) const {
  return {.params = shape_.params,
          .ranks = static_cast<int>(groups().host_members(shape_.ranks.rank).size()),
          .group_rank = groups().local_rank(shape_.ranks.rank),
          .threads = shape_.thread_count(),
          .source = source,
          .codec = &shape_.ranks.hierarchy->codec(),
          .memory = shape_.memory,
          .addends = source == Source::kForHostSum ? max_ranks_per_host() : 1.0f};
}

// A library adding values in place divides the values by itself.
bool Planner::is_unchunked(const ExchangeParameter& param, Algorithm algorithm) const {
  return algorithm == Algorithm::kNative && shape_.queues &&
         adds_in_place(*param.codec, param.dtype);
}

Schedule Planner::schedule(const ExchangeParameter& param, std::span<const Exchange> rounds) const {
  if (is_hierarchical(param)) return hierarchical(groups(), shape_.ranks.rank, rounds);
  const Group all = full_group(shape_.ranks.rank, grid(param));
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
Shards Planner::with_intra_host_shards(std::vector<Shards> host_shards) const {
  std::vector<std::vector<Piece>> pieces;
  for (const Shards& host_shard : host_shards) pieces.push_back(pieces_of(host_shard));
  const auto own = static_cast<std::size_t>(groups().local_rank(shape_.ranks.rank));
  Shards shards = plan_pieces(intra_host_context(Source::kForHostSum), pieces);
  append(shards, own < host_shards.size() ? std::move(host_shards[own])
                                          : Shards(host_shards.front().size()));
  append(shards, plan_pieces(intra_host_context(Source::kHostSum), pieces));
  return shards;
}

// Host shards differ by a unit at most. One host shard may therefore have an additional chunk.
template <typename PlanShards>
std::vector<ChunkPlan> Planner::encoded(const ExchangeParameter& param, Algorithm algorithm,
                                        const PlanShards& plan) const {
  const auto rounds = exchanges_of(*param.codec, param.dtype, encoding_ranks(param), algorithm);
  const auto plan_shard = [&](int host_shard) {
    return plan(encoded_context(host_shard, param), rounds.back());
  };
  if (!is_hierarchical(param)) return chunks(schedule(param, rounds), plan_shard(0));
  std::vector<std::vector<Shards>> of_host_shard;
  std::size_t count = 0;
  for (int host_shard = 0; host_shard < groups().host_shards(); ++host_shard) {
    of_host_shard.push_back(plan_shard(host_shard));
    count = std::max(count, of_host_shard.back().size());
  }
  const std::size_t shard_count = of_host_shard.front().front().size();
  std::vector<Shards> shards;
  for (std::size_t chunk = 0; chunk < count; ++chunk) {
    std::vector<Shards> host_shard_parts;
    for (std::vector<Shards>& host_shard : of_host_shard)
      host_shard_parts.push_back(chunk < host_shard.size() ? std::move(host_shard[chunk])
                                                           : Shards(shard_count));
    shards.push_back(with_intra_host_shards(std::move(host_shard_parts)));
  }
  return chunks(schedule(param, rounds), std::move(shards));
}

ChunkPlan Planner::whole(std::span<const std::uint32_t> params, Algorithm algorithm) const {
  const ExchangeParameter& first = this->params()[params.front()];
  if (scatters_hierarchically(first)) return whole_scattered(params);
  const auto plan = [&](const PlanContext& context, Exchange last) {
    return std::vector<Shards>{plan_whole(context, params, last)};
  };
  return std::move(encoded(first, algorithm, plan).front());
}

std::vector<ChunkPlan> Planner::cut(std::uint32_t param, Algorithm algorithm,
                                    std::size_t chunk_count) const {
  const ExchangeParameter& own = params()[param];
  if (scatters_hierarchically(own)) return scattered(rank_pieces(param), chunk_count);
  if (is_unchunked(own, algorithm))
    chunk_count = std::max(chunk_count, encoding_ranks(own) * align_up(own.count, own.unit()));
  return encoded(own, algorithm, [&](const PlanContext& context, Exchange last) {
    return plan_cut(context, param, last, chunk_count / context.sharding.host_shards);
  });
}

/// The range of a parameter for each rank.
std::vector<Piece> Planner::rank_pieces(std::uint32_t param) const {
  std::vector<Piece> pieces;
  for (int rank = 0; rank < shape_.ranks.count; ++rank)
    pieces.push_back({param, shard_range(params()[param].count, rank, shape_.ranks.count)});
  return pieces;
}

ChunkPlan Planner::whole_scattered(std::span<const std::uint32_t> params) const {
  std::vector<std::vector<Piece>> all(static_cast<std::size_t>(shape_.ranks.count));
  for (const std::uint32_t param : params) {
    const std::vector<Piece> own = rank_pieces(param);
    for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank].push_back(own[rank]);
  }
  const Schedule schedule = hierarchical_reduce_scatter(groups(), shape_.ranks.rank);
  return std::move(chunks(schedule, {scattered_shards(all)}).front());
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

Shards Planner::scattered_shards(std::span<const std::vector<Piece>> pieces) const {
  const int group_rank = groups().local_rank(shape_.ranks.rank);
  std::vector<std::vector<Piece>> within(static_cast<std::size_t>(groups().host_shards())), between;
  for (std::size_t i = 0; i < within.size(); ++i)
    for (const int owner : groups().owners(static_cast<int>(i)))
      std::ranges::copy(pieces[static_cast<std::size_t>(owner)], std::back_inserter(within[i]));
  for (const int owner : groups().owners(group_rank))
    between.push_back(pieces[static_cast<std::size_t>(owner)]);
  Shards shards = plan_pieces(intra_host_context(Source::kForHostSum), within);
  const ExchangeParameter& param = params()[pieces.front().front().param];
  append(shards, plan_pieces(encoded_context(group_rank, param), between));
  return shards;
}

// Uses shorter chunks on few ranks to keep a host's sums in the caches.
std::vector<ChunkPlan> Planner::scattered(std::span<const Piece> pieces,
                                          std::size_t chunk_count) const {
  constexpr std::size_t kCachedShard = std::size_t{1} << 14;
  chunk_count = std::min(chunk_count, kCachedShard * pieces.size());
  std::vector<Shards> shards;
  for (const std::vector<Piece>& chunk : cut_pieces(params(), pieces, chunk_count)) {
    std::vector<std::vector<Piece>> cut;
    for (const Piece& piece : chunk) cut.push_back({piece});
    shards.push_back(scattered_shards(cut));
  }
  return chunks(hierarchical_reduce_scatter(groups(), shape_.ranks.rank), std::move(shards));
}

// Frames between two ranks contain the row counts of both directions. Both ranks therefore detect
// different counts.
void Planner::set_row_identities(const Group& group, std::size_t columns, Shards& shards) const {
  for (int group_rank = 0; group_rank < shape_.ranks.count; ++group_rank) {
    const std::size_t to = shard_to(group, group_rank), from = shard_from(group, group_rank);
    const int peer = group.rank_at(group_rank);
    std::uint64_t first = params()[to].count / columns, second = params()[from].count / columns;
    if (peer < shape_.ranks.rank) std::swap(first, second);
    shards[to].group_rank = shape_.ranks.rank + shape_.ranks.count * peer;
    shards[to].signature = shards[from].signature =
        Signature().add(shape_.signature).add(first).add(second).value();
    shards[from].source_rank = peer;
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
    set_row_identities(group, columns, shards);
    const auto schedule =
        std::make_shared<const Schedule>(without_empty(all_to_all(group), shards));
    plans.push_back(make_chunk(schedule, std::move(shards), shape_.memory));
    plans.back().has_successor = longest - first > step;
  }
  return plans;
}

}  // namespace tersor
