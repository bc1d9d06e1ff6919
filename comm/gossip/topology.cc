#include <tersor/error.h>
#include <tersor/gossip.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

namespace tersor {
namespace {

using Edges = std::vector<std::vector<Edge>>;

std::string rank_text(std::size_t rank) { return "rank " + std::to_string(rank); }

// Connects each rank to the given neighbours. All neighbours and the rank itself have equal
// weights.
template <typename Neighbours>
Edges uniform_edges(int ranks, const Neighbours& neighbours_of) {
  Edges edges(static_cast<std::size_t>(std::max(ranks, 0)));
  for (int rank = 0; rank < ranks; ++rank) {
    std::set<int> others = neighbours_of(rank);
    others.erase(rank);
    for (const int other : others)
      edges[static_cast<std::size_t>(rank)].push_back(
          {other, 1.0 / static_cast<double>(others.size() + 1)});
  }
  return edges;
}

// Connects each rank to the ranks at the given distances, in both directions.
Edges circulant(int ranks, const std::set<int>& distances) {
  return uniform_edges(ranks, [&](int rank) {
    std::set<int> others;
    for (const int distance : distances) {
      others.insert((rank + distance) % ranks);
      others.insert((rank + ranks - distance) % ranks);
    }
    return others;
  });
}

double weight_of(const std::vector<Edge>& edges, std::size_t rank) {
  const auto found = std::ranges::find(edges, static_cast<int>(rank), &Edge::rank);
  return found == edges.end() ? 0.0 : found->weight;
}

void check_rank(const Edges& edges, std::size_t rank) {
  double sum = 0;
  std::set<int> seen = {static_cast<int>(rank)};
  for (const Edge& edge : edges[rank]) {
    if (edge.rank < 0 || static_cast<std::size_t>(edge.rank) >= edges.size() ||
        !seen.insert(edge.rank).second)
      throw InvalidArgumentError("topology: " + rank_text(rank) + " lists neighbour " +
                                 std::to_string(edge.rank) + ": give other ranks from 0 to " +
                                 std::to_string(edges.size() - 1) + ", each once");
    const double reverse = weight_of(edges[static_cast<std::size_t>(edge.rank)], rank);
    if (!(edge.weight > 0) || reverse != edge.weight)
      throw InvalidArgumentError("topology: the weight of " + rank_text(rank) + " for rank " +
                                 std::to_string(edge.rank) + " is " + std::to_string(edge.weight) +
                                 ", the weight in the other direction " + std::to_string(reverse) +
                                 ": give equal weights above 0");
    sum += edge.weight;
  }
  if (sum > 1 + 1e-9)
    throw InvalidArgumentError("topology: the weights of " + rank_text(rank) +
                               "'s neighbours add up to " + std::to_string(sum) +
                               ": give weights with a sum of at most 1");
}

std::set<int> component_of(const Edges& edges, int rank) {
  std::set<int> found = {rank};
  for (std::vector<int> pending = {rank}; !pending.empty();) {
    const int next = pending.back();
    pending.pop_back();
    for (const Edge& edge : edges[static_cast<std::size_t>(next)])
      if (found.insert(edge.rank).second) pending.push_back(edge.rank);
  }
  return found;
}

void check_connected(const Edges& edges) {
  std::string text;
  std::set<int> seen;
  for (int rank = 0; rank < static_cast<int>(edges.size()); ++rank) {
    if (seen.contains(rank)) continue;
    const std::set<int> component = component_of(edges, rank);
    seen.insert(component.begin(), component.end());
    text += text.empty() ? "{" : " {";
    for (const int one : component)
      text += (one == *component.begin() ? "" : ", ") + std::to_string(one);
    text += "}";
  }
  if (component_of(edges, 0).size() != edges.size())
    throw InvalidArgumentError(
        "topology: the ranks are not connected: add edges between the groups " + text);
}

}  // namespace

Topology::Topology(std::vector<std::vector<Edge>> edges) : edges_(std::move(edges)) {
  if (edges_.empty()) throw InvalidArgumentError("topology: edges is empty: give a list per rank");
  for (std::size_t rank = 0; rank < edges_.size(); ++rank) check_rank(edges_, rank);
  check_connected(edges_);
}

Topology Topology::ring(int ranks) { return Topology(circulant(ranks, {1})); }

Topology Topology::exponential(int ranks) {
  std::set<int> distances;
  for (int distance = 1; distance < ranks; distance *= 2) distances.insert(distance);
  return Topology(circulant(ranks, distances));
}

Topology Topology::torus(int rows, int columns) {
  return Topology(uniform_edges(std::max(rows, 0) * std::max(columns, 0), [&](int rank) {
    const int row = rank / columns, column = rank % columns;
    const auto at = [&](int r, int c) {
      return (r + rows) % rows * columns + (c + columns) % columns;
    };
    return std::set<int>{at(row - 1, column), at(row + 1, column), at(row, column - 1),
                         at(row, column + 1)};
  }));
}

Topology Topology::named(std::string_view name, int ranks) {
  if (name == "ring") return ring(ranks);
  if (name == "exponential") return exponential(ranks);
  if (name != "torus")
    throw InvalidArgumentError("topology is \"" + std::string(name) +
                               "\": give ring, torus or exponential");
  int rows = static_cast<int>(std::sqrt(static_cast<double>(ranks)));
  while (rows > 1 && ranks % rows != 0) --rows;
  return torus(rows, ranks / rows);
}

}  // namespace tersor
