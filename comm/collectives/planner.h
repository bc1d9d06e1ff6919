// Plans chunks: the shards and the schedule of each chunk.
#pragma once

#include "comm/collectives/hierarchy.h"
#include "comm/collectives/plan.h"
#include "comm/collectives/ranks.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tersor {

/// The divisor applied before encoding. Multiply a residual by this divisor to express the residual
/// in units of the undivided sum.
struct ResidualScales {
  float sender = 1;
  std::array<float, OwnedRanges::kMaxStages> owner = {1, 1, 1};  ///< by stage
};

/// The divisors on a grid adding a mean over `adds` ranks, with sender values already divided by
/// `sender`.
ResidualScales scales_over(const Grid& grid, float addends, float sender = 1);

class Planner {
 public:
  /// The shape must outlive the planner, and its parameters also the chunks. Needs no transport.
  explicit Planner(const ExchangeShape& shape) : shape_(shape) {}

  std::span<const ExchangeParameter> params() const { return shape_.params; }
  int encoding_ranks(const ExchangeParameter& param) const {
    return tersor::encoding_ranks(shape_.ranks, param);
  }
  /// True if every rank receives all values of a reduce-scatter, because an indivisible codec
  /// selects among all values.
  bool gathers_whole(const ExchangeParameter& param) const {
    return param.collective == Collective::kReduceScatter && !is_hierarchical(param) &&
           !param.codec->traits().sent_divisible;
  }
  /// The divisors of a parameter's residuals in a mean.
  ResidualScales residual_scales(const ExchangeParameter& param) const;

  /// `whole` plans a chunk of whole parameters of the same collective. `cut` plans the chunks of a
  /// parameter.
  ChunkPlan whole(std::span<const std::uint32_t> params, Algorithm algorithm) const;
  std::vector<ChunkPlan> cut(std::uint32_t param, Algorithm algorithm,
                             std::size_t chunk_count) const;
  /// Plans the chunks of the only parameter with the given schedule; `last` determines the shards.
  std::vector<ChunkPlan> cut_by(const Schedule& schedule, Exchange last,
                                std::size_t chunk_count) const;
  /// Plans the chunks of a collective of all ranks, with the owners' parameters as shards.
  std::vector<ChunkPlan> by_rank(const Group& group, const Schedule& schedule,
                                 std::size_t chunk_count) const;
  /// Plans the chunks of a hierarchical reduce-scatter with pieces[r] for rank r.
  std::vector<ChunkPlan> scattered(std::span<const Piece> pieces, std::size_t chunk_count) const;
  /// Plans the chunks of an all_to_all with rows of `columns` values and parameters as shards. The
  /// number of chunks follows from this rank's longest parameter. Two ranks cut the rows between
  /// them equally.
  std::vector<ChunkPlan> by_rows(const Group& group, std::size_t columns,
                                 std::size_t chunk_count) const;

 private:
  bool is_hierarchical(const ExchangeParameter& param) const {
    return hierarchy_of(shape_.ranks, param) != nullptr;
  }
  const HostGroups& groups() const { return shape_.ranks.hierarchy->groups(); }
  bool scatters_hierarchically(const ExchangeParameter& param) const {
    return param.collective == Collective::kReduceScatter && is_hierarchical(param);
  }
  Grid grid(const ExchangeParameter& param) const;
  PlanContext context(const ExchangeParameter& param) const;
  PlanContext encoded_context(int host_shard, const ExchangeParameter& param) const;
  PlanContext intra_host_context(Source source) const;
  /// The largest number of ranks on a host, so all hosts' sums have equal weights.
  float max_ranks_per_host() const { return static_cast<float>(groups().max_ranks_per_host()); }
  bool is_unchunked(const ExchangeParameter& param, Algorithm algorithm) const;
  std::vector<ChunkPlan> chunks(const Schedule& schedule, std::vector<Shards> shards) const;
  Schedule schedule(const ExchangeParameter& param, std::span<const Exchange> rounds) const;
  /// The chunks of encoded values. `plan(context, last)` plans the chunks of a host shard.
  template <typename PlanShards>
  std::vector<ChunkPlan> encoded(const ExchangeParameter& param, Algorithm algorithm,
                                 const PlanShards& plan) const;
  Shards with_intra_host_shards(std::vector<Shards> host_shards) const;
  std::vector<Piece> rank_pieces(std::uint32_t param) const;
  Shards scattered_shards(std::span<const std::vector<Piece>> pieces) const;
  ChunkPlan whole_scattered(std::span<const std::uint32_t> params) const;
  std::size_t rows_at_once(const Group& group, std::size_t columns, std::size_t chunk_count) const;
  void set_row_identities(const Group& group, std::size_t columns, Shards& shards) const;

  const ExchangeShape& shape_;
};

}  // namespace tersor
