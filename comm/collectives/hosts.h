// Ranks grouped by host, and what each of them owns in a hierarchical collective.
//
// A parameter is cut into *shards*, as many as the host of fewest ranks has: the rank at place j
// among its *neighbours* (the ranks of its host) owns shard j there. The owners of one shard, one a
// host, exchange it between the hosts.
#pragma once

#include "comm/collectives/grid.h"
#include "comm/collectives/parts.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tersor {

/// What one rank encodes of a parameter, and what it owns in a two-shot allreduce.
struct StateRanges {
  Range encoded;
  OwnedRanges owned;
};

class HostGroups {
 public:
  /// hosts[r] is the host of rank r; any numbers, equal ones share a host. Throws InvalidArgument
  /// where there is not one for each rank. Of error_growth: CollectiveOptions.
  HostGroups(std::span<const int> hosts, int ranks, double error_growth = kDefaultErrorGrowth);

  int ranks() const { return static_cast<int>(host_of_.size()); }
  int hosts() const { return static_cast<int>(members_.size()); }
  int shards() const { return shards_; }
  /// Of the host that has most.
  int most_ranks() const { return most_ranks_; }
  /// Whether each host has as many ranks as any other.
  bool even() const { return hosts() * shards_ == ranks(); }
  /// Hosts by rank, numbered from 0 by their lowest ranks.
  std::span<const int> numbers() const { return host_of_; }

  /// Ranks, host behind host.
  std::vector<int> by_host() const;
  /// The ranks of a rank's host, ascending, itself among them.
  const std::vector<int>& neighbours(int rank) const;
  int place(int rank) const;
  /// The owners of a shard, ascending, one a host.
  std::vector<int> owners(int shard) const;
  /// Whether a rank owns a shard that it exchanges with other hosts.
  bool encodes(int rank) const { return hosts() > 1 && place(rank) < shards_; }

  /// How the owners of a shard exchange it.
  const Grid& grid() const { return grid_; }

  /// Of a codec whose segments are cut at multiples of `unit`.
  StateRanges state_ranges(std::size_t count, int rank, std::uint32_t parameter,
                           std::size_t unit) const;
  /// Of a reduce-scatter: how many values a rank encodes, and where the first shard of these lies.
  Range scattered(std::size_t count, int rank) const;

 private:
  std::vector<int> host_of_;
  std::vector<std::vector<int>> members_;  // of each host
  int shards_ = 0;
  int most_ranks_ = 0;
  Grid grid_;
};

/// Where a value stands in an ascending list that holds it.
int index_in(std::span<const int> ascending, int value);

}  // namespace tersor
