#include "comm/collectives/hosts.h"

#include "comm/transport/host/hosts.h"

#include <tersor/collectives.h>

#include <algorithm>
#include <string>

namespace tersor {
namespace {

void check_rank(int rank, int ranks) {
  if (ranks < 1 || rank < 0 || rank >= ranks)
    throw InvalidArgumentError("rank is " + std::to_string(rank) + ": give 0 to " +
                               std::to_string(ranks - 1));
}

StateRanges ranges_of(std::size_t count, int rank, std::span<const int> hosts,
                      std::uint32_t parameter, std::size_t unit,
                      double error_growth = kDefaultErrorGrowth) {
  const int ranks = static_cast<int>(hosts.size());
  check_rank(rank, ranks);
  return HostGroups(hosts, ranks, error_growth).state_ranges(count, rank, parameter, unit);
}

}  // namespace

void check_hosts(std::span<const int> hosts, int ranks) {
  if (hosts.size() != static_cast<std::size_t>(ranks))
    throw InvalidArgumentError("hosts has " + std::to_string(hosts.size()) + " numbers for " +
                               std::to_string(ranks) + " ranks: give one number per rank");
}

HostGroups::HostGroups(std::span<const int> hosts, int ranks, double error_growth)
    : host_of_(host::number_hosts(hosts)) {
  check_hosts(hosts, ranks);
  members_.resize(static_cast<std::size_t>(*std::max_element(host_of_.begin(), host_of_.end())) +
                  1);
  for (int rank = 0; rank < ranks; ++rank)
    members_[static_cast<std::size_t>(host_of_[static_cast<std::size_t>(rank)])].push_back(rank);
  host_shards_ = ranks;
  for (const std::vector<int>& members : members_) {
    host_shards_ = std::min(host_shards_, static_cast<int>(members.size()));
    max_ranks_per_host_ = std::max(max_ranks_per_host_, static_cast<int>(members.size()));
  }
  grid_ = Grid::standard(this->hosts(), error_growth);
}

std::vector<int> HostGroups::by_host() const {
  std::vector<int> ranks;
  for (const std::vector<int>& members : members_)
    ranks.insert(ranks.end(), members.begin(), members.end());
  return ranks;
}

const std::vector<int>& HostGroups::host_members(int rank) const {
  return members_[static_cast<std::size_t>(host_of_[static_cast<std::size_t>(rank)])];
}

int HostGroups::local_rank(int rank) const { return index_in(host_members(rank), rank); }

std::vector<int> HostGroups::owners(int host_shard) const {
  std::vector<int> ranks;
  for (const std::vector<int>& members : members_)
    ranks.push_back(members[static_cast<std::size_t>(host_shard)]);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

StateRanges HostGroups::state_ranges(std::size_t count, int rank, std::uint32_t parameter,
                                     std::size_t unit) const {
  if (!encodes(rank)) return {};
  const Range host_shard = owned_range(count, local_rank(rank), host_shards_, parameter, unit);
  const int among_owners = index_in(owners(local_rank(rank)), rank);
  return {host_shard, grid().owned(host_shard, among_owners, parameter, unit)};
}

Range HostGroups::scattered_range(std::size_t count, int rank) const {
  const Range first = shard_range(count, owners(local_rank(rank)).front(), ranks());
  return {first.first, first.count * static_cast<std::size_t>(hosts())};
}

int index_in(std::span<const int> ascending, int value) {
  return static_cast<int>(std::lower_bound(ascending.begin(), ascending.end(), value) -
                          ascending.begin());
}

std::size_t encoded_count(std::size_t count, int rank, std::span<const int> hosts,
                          std::uint32_t parameter, std::size_t unit) {
  return ranges_of(count, rank, hosts, parameter, unit).encoded.count;
}

std::size_t scattered_count(std::size_t count, std::span<const int> hosts) {
  check_rank(0, static_cast<int>(hosts.size()));
  const HostGroups groups(hosts, static_cast<int>(hosts.size()));
  if (groups.hosts() == 1) return 0;
  return groups.even() ? count / static_cast<std::size_t>(groups.host_shards()) : count;
}

std::size_t owned_count(std::size_t count, int rank, std::span<const int> hosts,
                        std::uint32_t parameter, std::size_t unit, double error_growth) {
  return ranges_of(count, rank, hosts, parameter, unit, error_growth).owned.count();
}

std::size_t owned_count(std::size_t count, int rank, int ranks, std::uint32_t parameter,
                        std::size_t unit, std::span<const int> dims, double error_growth) {
  check_rank(rank, ranks);
  return Grid::of(dims, ranks, error_growth).owned({0, count}, rank, parameter, unit).count();
}

}  // namespace tersor
