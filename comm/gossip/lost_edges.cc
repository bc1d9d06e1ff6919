#include "comm/gossip/lost_edges.h"

#include <tersor/error.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace tersor {
namespace {

using EdgeRanks = std::array<std::int32_t, 2>;  // two ranks in a message, little-endian

}  // namespace

void LostEdges::add(int one, int other) { edges_.insert(std::minmax({one, other})); }

std::size_t LostEdges::max_bytes() const {
  std::size_t ends = 0;
  for (int rank = 0; rank < topology_.ranks(); ++rank) ends += topology_.edges(rank).size();
  return ends / 2 * kEdgeBytes;
}

void LostEdges::write(ByteSpan message) const {
  std::byte* to = message.data();
  for (const auto& [one, other] : edges_) {
    const EdgeRanks ranks = {one, other};
    std::memcpy(std::exchange(to, to + kEdgeBytes), ranks.data(), kEdgeBytes);
  }
}

void LostEdges::read(ConstByteSpan message) {
  if (message.size() % kEdgeBytes != 0)
    throw WireError("gossip: a message with lost edges is truncated");
  for (std::size_t at = 0; at < message.size(); at += kEdgeBytes) {
    EdgeRanks ranks;
    std::memcpy(ranks.data(), message.data() + at, kEdgeBytes);
    const auto [one, other] = ranks;
    if (one < 0 || one >= topology_.ranks() ||
        std::ranges::count(topology_.edges(one), other, &Edge::rank) == 0)
      throw WireError("gossip: ranks " + std::to_string(one) + " and " + std::to_string(other) +
                      " are reported as disconnected, but are not neighbours");
    add(one, other);
  }
}

std::vector<int> LostEdges::unreachable_from(int rank) const {
  std::vector<int> component = {rank}, others;
  std::set<int> adjacent;
  for (std::size_t i = 0; i < component.size(); ++i)
    for (const Edge& edge : topology_.edges(component[i]))
      if (edges_.contains(std::minmax({component[i], edge.rank})))
        adjacent.insert(edge.rank);
      else if (std::ranges::count(component, edge.rank) == 0)
        component.push_back(edge.rank);
  bool is_partitioned = component.size() == 1;
  for (int one = 0; one < topology_.ranks(); ++one) {
    if (std::ranges::count(component, one) != 0) continue;
    others.push_back(one);
    is_partitioned |= !adjacent.contains(one);
  }
  return is_partitioned ? others : std::vector<int>();
}

}  // namespace tersor
