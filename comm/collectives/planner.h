// Plans chunks: their lanes, and the schedule that they go by.
#pragma once

#include "comm/collectives/context.h"
#include "comm/collectives/hierarchy.h"
#include "comm/collectives/plan.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tersor {

/// What a residual's values count for in the sum over ranks that a mean is made of: as many as what
/// was encoded had been divided by.
struct Owed {
  float sender = 1;
  std::array<float, OwnedRanges::kMostStages> owner = {1, 1, 1};  ///< by stage
};

/// What places of a grid owe that add a mean of so many, whose senders' values count `sender`
/// times.
Owed owed_over(const Grid& grid, float adds, float sender = 1);

class Planner {
 public:
  /// The context outlives the planner and its chunks.
  explicit Planner(const ExchangeContext& context) : context_(context) {}

  std::span<const Slot> slots() const { return context_.slots; }
  int encoding_ranks(const Slot& slot) const { return tersor::encoding_ranks(context_, slot); }
  /// Of a slot's residuals, where a mean is taken.
  Owed owed(const Slot& slot) const;

  /// One chunk of whole slots of one collective; and the chunks that one slot is cut into.
  ChunkPlan whole(std::span<const std::uint32_t> slots, Algorithm algorithm) const;
  std::vector<ChunkPlan> cut(std::uint32_t slot, Algorithm algorithm,
                             std::size_t chunk_count) const;
  /// The chunks of the only slot, which go by this schedule; its lanes are those of `last`.
  std::vector<ChunkPlan> cut_by(const Schedule& schedule, Exchange last,
                                std::size_t chunk_count) const;
  /// The chunks of a collective of all ranks, whose lanes are the slots of those who own them.
  std::vector<ChunkPlan> by_rank(const Party& party, const Schedule& schedule,
                                 std::size_t chunk_count) const;
  /// Those of a reduce-scatter by hosts, in which shares[r] goes to rank r.
  std::vector<ChunkPlan> scattered(std::span<const Piece> shares, std::size_t chunk_count) const;
  /// The chunks of an all_to_all of rows of so many values, whose lanes are the slots: as many as
  /// the longest of this rank's is cut into. Two ranks cut what goes from one to the other alike.
  std::vector<ChunkPlan> by_rows(const Party& party, std::size_t columns,
                                 std::size_t chunk_count) const;

 private:
  bool climbs(const Slot& slot) const { return hierarchy_of(context_, slot) != nullptr; }
  const HostGroups& groups() const { return context_.hierarchy->groups(); }
  bool scatters_by_hosts(const Slot& slot) const {
    return slot.collective == Collective::kReduceScatter && climbs(slot);
  }
  Grid grid(const Slot& slot) const;
  PlanContext context(const Slot& slot) const;
  PlanContext encoded_context(int shard, const Slot& slot) const;
  PlanContext host_context(Carried carried) const;
  /// By as many as add on any host, so that hosts' sums count alike.
  float host_share() const { return static_cast<float>(groups().most_ranks()); }
  bool stays_whole(const Slot& slot, Algorithm algorithm) const;
  std::vector<ChunkPlan> chunks(const Schedule& schedule, std::vector<Lanes> lanes) const;
  std::vector<Exchange> exchanges(const Slot& slot, Algorithm algorithm) const;
  Schedule schedule(const Slot& slot, std::span<const Exchange> rounds) const;
  std::vector<Lanes> cut_shards(std::uint32_t slot, Exchange last, std::size_t chunk_count) const;
  Lanes with_hosts(std::vector<Lanes> shards) const;
  std::vector<Piece> shares(std::uint32_t slot) const;
  Lanes scattered_lanes(std::span<const std::vector<Piece>> shares) const;
  ChunkPlan whole_scattered(std::span<const std::uint32_t> slots) const;
  std::uint64_t signature_with(std::size_t peer, std::size_t sent, std::size_t received) const;
  std::size_t rows_at_once(const Party& party, std::size_t columns, std::size_t chunk_count) const;
  void name_rows(const Party& party, std::size_t columns, Lanes& lanes) const;

  const ExchangeContext& context_;
};

}  // namespace tersor
