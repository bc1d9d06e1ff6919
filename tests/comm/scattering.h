// A model of sharded parameters, for the tests of reducers with reduce_scatter.
#pragma once

#include "comm/collectives/parts.h"
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

namespace tersor::testing {

struct Layer {
  const char* name;
  std::size_t rows, columns;

  std::size_t count() const { return rows * std::max<std::size_t>(columns, 1); }
};

inline constexpr Layer kLayers[] = {
    {"first", 71, 65}, {"bias", 71, 0}, {"second", 65, 131}, {"scale", 3, 0}};

/// Shards like FSDP: by rows, padded to the length of the longest shard.
inline std::size_t shard_count(const Layer& layer, int ranks) {
  return ceil_div(layer.rows, static_cast<std::size_t>(ranks)) * (layer.count() / layer.rows);
}

/// The model of one rank.
class Model {
 public:
  Model(Transport& transport, const ReducerOptions& options)
      : rank_(transport.rank()), ranks_(transport.ranks()), reducer(transport, options) {
    for (const Layer& layer : kLayers) {
      const std::size_t shard = shard_count(layer, ranks_);
      shards.emplace_back(shard);
      reducer.add(layer.name, {.count = layer.count(),
                               .rows = layer.rows,
                               .columns = layer.columns,
                               .collective = Collective::kReduceScatter,
                               .shard_count = shard});
    }
  }

  Values gradient(std::size_t layer, int step) const {
    Values values = gaussian(kLayers[layer].count(),
                             static_cast<std::uint64_t>(step * 100 + rank_ * 10) + layer);
    values.resize(shards[layer].size() * static_cast<std::size_t>(ranks_));
    return values;
  }

  /// The concatenated shards of this rank. The parameter `left_out` has no gradient.
  Values step(int index, int left_out = -1) {
    std::vector<Values> given;
    for (std::size_t i = 0; i < std::size(kLayers); ++i) given.push_back(gradient(i, index));
    for (std::size_t i = std::size(kLayers); i-- > 0;)
      reducer.ready(
          kLayers[i].name, given[i], shards[i],
          static_cast<int>(i) == left_out ? Contribution::kNone : Contribution::kGradient);
    reducer.wait();
    return all();
  }

  Values all() const {
    Values values;
    for (const Values& shard : shards) values.insert(values.end(), shard.begin(), shard.end());
    return values;
  }

 private:
  int rank_, ranks_;

 public:
  std::vector<Values> shards;
  GradientReducer reducer;
};

/// Ranks, either without hosts or assigned to hosts.
struct RanksOnHosts {
  int ranks;
  std::vector<int> hosts = {};
};

inline std::ostream& operator<<(std::ostream& out, const RanksOnHosts& setup) {
  return out << setup.ranks << " ranks, hosts " << ::testing::PrintToString(setup.hosts);
}

inline ReducerOptions options_of(const std::string& codec, const RanksOnHosts& setup) {
  return {.rules = {{"bias", "bf16"}, {"scale", "bf16"}, {"*", codec}},
          .algorithm = setup.hosts.empty() ? Algorithm::kAuto : Algorithm::kHierarchical,
          .hosts = setup.hosts,
          .chunk_count = 2048,
          .seed = 3};
}

}  // namespace tersor::testing
