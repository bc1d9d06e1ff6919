// The lost edges of a gossip's topology. Every frame contains the sender's lost edges, so each rank
// can find the ranks without a path to itself.
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
  /// The topology must outlive the object.
  explicit LostEdges(const Topology& topology) : topology_(topology) {}
  explicit LostEdges(Topology&&) = delete;

  void add(int one, int other);

  /// Message bytes of the lost edges, and of all edges of the topology.
  std::size_t bytes() const { return edges_.size() * kEdgeBytes; }
  std::size_t max_bytes() const;
  void write(ByteSpan message) const;
  /// Adds the edges of a neighbour's message. Throws WireError for an edge outside the topology.
  void read(ConstByteSpan message);

  /// The ranks without a path to `rank`, ascending. Empty if all unreachable ranks are next to
  /// joined ranks: only lost ranks are missing then. A rank without neighbours is cut off from all
  /// ranks.
  std::vector<int> unreachable_from(int rank) const;

 private:
  static constexpr std::size_t kEdgeBytes = 8;

  const Topology& topology_;
  std::set<std::pair<int, int>> edges_;  // lower rank first
};

}  // namespace tersor
