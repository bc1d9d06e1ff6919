// The lost edges of a gossip's topology. Every frame carries the sender's lost edges, so each rank
// can find the ranks that no path joins any more.
#pragma once

#include <tersor/gossip.h>
#include <tersor/span.h>

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

namespace tersor {

class LostEdges {
 public:
  explicit LostEdges(const Topology& topology) : topology_(topology) {}

  void add(int one, int other);

  /// Bytes of a message: for the lost edges, and for all edges of the topology.
  std::size_t bytes() const { return edges_.size() * kEdgeBytes; }
  std::size_t most_bytes() const;
  void write(ByteSpan message) const;
  /// Adds the edges of a neighbour's message. Throws WireError for an edge that is not in the
  /// topology.
  void read(ConstByteSpan message);

  /// The ranks that no path joins to `rank`, ascending. Empty if all unreachable ranks are next to
  /// joined ranks: then only lost ranks are missing. A rank without neighbours is cut off from all
  /// ranks.
  std::vector<int> cut_off(int rank) const;

 private:
  static constexpr std::size_t kEdgeBytes = 8;

  const Topology& topology_;
  std::set<std::pair<int, int>> edges_;  // the lower rank first
};

}  // namespace tersor
