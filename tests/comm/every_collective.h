// Runs all collectives in sequence, to compare the results of two transports.
#pragma once

#include "tests/comm/ranks.h"

#include <tersor/sending.h>

#include <cstddef>
#include <iterator>
#include <string>
#include <vector>

namespace tersor::testing {

inline void append(Values& all, const Values& more) {
  all.insert(all.end(), more.begin(), more.end());
}

/// The concatenated results of a broadcast, a reduce, a gather and a scatter.
inline Values to_and_from(int root, Transport& any, const Values& own,
                          const CollectiveOptions& options) {
  const auto ranks = static_cast<std::size_t>(any.ranks());
  const std::size_t gets = any.rank() == root ? own.size() : 0, part = own.size() / ranks;
  Values all = own, sum(gets), whole(gets * ranks), shard(part);
  broadcast(any, all, root, options);
  reduce(any, own, sum, root, options);
  gather(any, own, whole, root, options);
  scatter(any, ConstValueSpan(own).subspan(0, part * ranks), shard, root, options);
  for (const Values& more : {sum, whole, shard}) append(all, more);
  return all;
}

/// The concatenated results of a reduce_scatter and an allgather of its shard.
inline Values scattered_and_gathered(Transport& any, const Values& own,
                                     const CollectiveOptions& options) {
  const auto ranks = static_cast<std::size_t>(any.ranks());
  Values shard(own.size() / ranks), all(shard.size() * ranks);
  reduce_scatter(any, ConstValueSpan(own).subspan(0, all.size()), shard, options);
  allgather(any, ConstValueSpan(shard), all, options);
  return all;
}

/// The received rows of 300 values; some ranks send none.
inline Values dealt_out(Transport& any, const Values& own, const CollectiveOptions& options) {
  constexpr std::size_t kColumns = 300;
  std::vector<std::size_t> rows;  // to each peer, and as many from each peer
  std::size_t count = 0;
  for (int peer = 0; peer < any.ranks(); ++peer) {
    rows.push_back(static_cast<std::size_t>((any.rank() + peer) % 3));
    count += rows.back() * kColumns;
  }
  Values arrived(count);
  all_to_all(any, ConstValueSpan(own).subspan(0, count), arrived, kColumns,
             {.sent = rows, .received = rows}, options);
  return arrived;
}

/// The values received from the previous rank while sending to the next rank.
inline Values handed_on(Transport& any, const Values& own, const CollectiveOptions& options) {
  if (any.ranks() == 1) return own;
  Values came(own.size());
  Sending receiving = receive(any, came, (any.rank() + any.ranks() - 1) % any.ranks(), options);
  send(any, own, (any.rank() + 1) % any.ranks(), options).wait();
  receiving.wait();
  return came;
}

/// Runs every collective except allreduce with the direct algorithm. An even number of at least 4
/// ranks also runs the hierarchical algorithm with hosts of two ranks, and a grid.
inline Values every_collective(Transport& any, const Values& own, const std::string& codec) {
  CollectiveOptions options{.codec = codec, .chunk_count = 50'000};
  Values all = handed_on(any, own, options);
  for (const int root : {0, any.ranks() - 1}) append(all, to_and_from(root, any, own, options));
  const auto shards = [&] {
    append(all, scattered_and_gathered(any, own, options));
    append(all, dealt_out(any, own, options));
  };
  shards();
  if (any.ranks() < 4 || any.ranks() % 2 != 0) return all;
  const std::vector<int> dims{2, any.ranks() / 2};
  options.dims = dims;
  shards();
  std::vector<int> hosts;
  for (int rank = 0; rank < any.ranks(); ++rank) hosts.push_back(rank % (any.ranks() / 2));
  options.dims = {};
  options.algorithm = Algorithm::kHierarchical;
  options.hosts = hosts;
  shards();
  return all;
}

}  // namespace tersor::testing
