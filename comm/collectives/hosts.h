// Ranks grouped by host, and each rank's values in a hierarchical collective.
//
// A parameter is cut into *host shards*, one per rank of the smallest host. On each host, local
// rank j owns host shard j. The owners of a host shard, one per host, exchange it between hosts.
#pragma once

#include "comm/collectives/grid.h"
#include "comm/collectives/parts.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tersor {

/// The values a rank encodes of a parameter, and the owned values in a two-shot allreduce.
struct StateRanges {
  Range encoded;
  OwnedRanges owned;
};

/// Throws InvalidArgumentError unless there is a number per rank.
void check_hosts(std::span<const int> hosts, int ranks);

class HostGroups {
 public:
  /// hosts[r] is the host of rank r: arbitrary numbers, equal for ranks of a host. Throws
  /// InvalidArgumentError unless there is a number per rank. See CollectiveOptions for
  /// error_growth.
  HostGroups(std::span<const int> hosts, int ranks, double error_growth = kDefaultErrorGrowth);

  int ranks() const { return static_cast<int>(host_of_.size()); }
  int hosts() const { return static_cast<int>(members_.size()); }
  int host_shards() const { return host_shards_; }
  int max_ranks_per_host() const { return max_ranks_per_host_; }
  /// True if all hosts have equally many ranks.
  bool even() const { return hosts() * host_shards_ == ranks(); }
  /// Host of each rank, numbered from 0 in the order of the lowest ranks.
  std::span<const int> numbers() const { return host_of_; }

  /// All ranks, ordered by host.
  std::vector<int> by_host() const;
  /// The ranks of a rank's host, ascending, including the rank.
  const std::vector<int>& host_members(int rank) const;
  int local_rank(int rank) const;
  /// The owners of a host shard, ascending, one per host.
  std::vector<int> owners(int host_shard) const;
  /// True if a rank owns a host shard exchanged with other hosts.
  bool encodes(int rank) const { return hosts() > 1 && local_rank(rank) < host_shards_; }

  /// The grid for exchanging a host shard among its owners.
  const Grid& grid() const { return grid_; }

  /// The ranges for a codec whose segments are cut at multiples of `unit`.
  StateRanges state_ranges(std::size_t count, int rank, std::uint32_t parameter,
                           std::size_t unit) const;
  /// The encoded values of a reduce-scatter: the start of the first shard, and the count.
  Range scattered_range(std::size_t count, int rank) const;

 private:
  std::vector<int> host_of_;
  std::vector<std::vector<int>> members_;  // by host
  int host_shards_ = 0;
  int max_ranks_per_host_ = 0;
  Grid grid_;
};

/// The index of a value in an ascending list. The list must contain the value.
int index_in(std::span<const int> ascending, int value);

}  // namespace tersor
