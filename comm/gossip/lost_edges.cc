#include "comm/gossip/lost_edges.h"

#include <tersor/error.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace tersor {
namespace {

using EdgeRanks = std::array<std::int32_t, 2>;  // in a message, little-endian

}  // namespace

void LostEdges::add(int one, int other) { edges_.insert(std::minmax({one, other})); }

std::size_t LostEdges::most_bytes() const {
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
  if (message.size() % kEdgeBytes != 0) throw WireError("gossip: part of a lost edge");
  for (std::size_t at = 0; at < message.size(); at += kEdgeBytes) {
    EdgeRanks ranks;
    std::memcpy(ranks.data(), message.data() + at, kEdgeBytes);
    const auto [one, other] = ranks;
    if (one < 0 || one >= topology_.ranks() ||
        std::ranges::count(topology_.edges(one), other, &Edge::rank) == 0)
      throw WireError("gossip: ranks " + std::to_string(one) + " and " + std::to_string(other) +
                      " are lost to each other, but are no neighbours");
    add(one, other);
  }
}

std::vector<int> LostEdges::cut_off(int rank) const {
  const auto ranks = static_cast<std::size_t>(topology_.ranks());
  std::vector<bool> joined(ranks), next_to_joined(ranks);
  std::vector<int> found = {rank};
  for (std::size_t i = 0; i < found.size(); ++i) {
    joined[static_cast<std::size_t>(found[i])] = true;
    for (const Edge& edge : topology_.edges(found[i])) {
      const bool is_lost = edges_.contains(std::minmax({found[i], edge.rank}));
      if (is_lost)
        next_to_joined[static_cast<std::size_t>(edge.rank)] = true;
      else if (std::ranges::count(found, edge.rank) == 0)
        found.push_back(edge.rank);
    }
  }
  std::vector<int> others;
  bool is_apart = found.size() == 1;
  for (std::size_t one = 0; one < ranks; ++one) {
    if (joined[one]) continue;
    others.push_back(static_cast<int>(one));
    is_apart |= !next_to_joined[one];
  }
  return is_apart ? others : std::vector<int>();
}

}  // namespace tersor
