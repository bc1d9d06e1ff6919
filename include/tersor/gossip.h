// Averaging among neighbours: each rank keeps weights of its own, and moves them towards those of
// the few ranks that it is joined to. docs/gossip.md says when not to use it.
#pragma once

#include <tersor/span.h>
#include <tersor/transport.h>
#include <tersor/wire.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tersor {

/// A neighbour, and how much its weights count.
struct Edge {
  int rank = 0;
  double weight = 0;
};

/// Of each rank its neighbours; what is left to 1 is its own. Weights are symmetric, above 0, and
/// of a rank at most 1 together; all ranks are joined by some way.
class Topology {
 public:
  /// Throws InvalidArgument that names the ranks where it is otherwise: of a graph that is not
  /// connected its components.
  explicit Topology(std::vector<std::vector<Edge>> edges);

  static Topology ring(int ranks);
  static Topology torus(int rows, int columns);
  /// Neighbours at distances of 1, 2, 4, … in both directions.
  static Topology exponential(int ranks);
  /// "ring", "torus" (as square as it goes) or "exponential".
  static Topology named(std::string_view name, int ranks);

  int ranks() const { return static_cast<int>(edges_.size()); }
  const std::vector<Edge>& edges(int rank) const { return edges_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<std::vector<Edge>> edges_;
};

/// The action of `mix`, after a complete step, if no path joins this rank to other ranks any more.
enum class OnSplit : std::uint8_t {
  kThrow,     ///< throws PeerLost, once per loss; further calls mix with the joined ranks
  kContinue,  ///< continues; GossipStatistics::cut_off names the other ranks
};

struct GossipOptions {
  std::string codec = "int8";  ///< without "+ef": what is left out is left over by itself
  /// How far a step goes towards the neighbours, above 0 and at most 1. 0: 1 for codecs that keep
  /// 0.6 of a normal vector's energy and more (those that quantise), else half of what they keep.
  double step_size = 0;
  Checksum checksum = Checksum::kOn;
  /// A neighbour is lost after this time without a message. Ranks that wait in `mix` send messages.
  std::chrono::milliseconds timeout = kDefaultTimeout;
  OnSplit on_split = OnSplit::kThrow;
};

struct GossipStatistics {
  std::uint64_t steps = 0;
  std::uint64_t sent_bytes = 0;  ///< by this rank, to all neighbours
  std::vector<int> lost;         ///< neighbours, in their order
  /// Ranks that no path joins to this rank any more, ascending. Empty while all ranks except lost
  /// ranks are one graph.
  std::vector<int> cut_off;
};

/// CHOCO-SGD (Koloskova, Stich and Jaggi 2019, arXiv:1902.00340). Of weights x and of what all know
/// of them, y: q = Q(x - y) goes to the neighbours, y += q, x += step_size * sum of weight * (y of
/// the neighbour - y). All know each other's y, since they decode the same frames. y and the sum
/// are f64, so the mean over ranks stays. A gossip takes five times the weights' memory, for any
/// number of neighbours.
class Gossip {
 public:
  /// A collective call. Throws InvalidArgument where ranks' topologies, codecs or step sizes differ
  /// (those who differ are named), and for a codec that needs more than a frame.
  Gossip(Transport& transport, Topology topology, const GossipOptions& options = {});
  ~Gossip();
  Gossip(const Gossip&) = delete;
  Gossip& operator=(const Gossip&) = delete;

  /// Weights of f32 on the host, which outlive this; before the first step, alike on all ranks.
  void add(std::string name, ValueSpan weights);
  /// Encodes what the weights have moved by, and sends it.
  void begin();
  /// Waits for the neighbours', and moves the weights, which may have moved meanwhile. A neighbour
  /// that is lost counts no more, and its weight is this rank's own; what all know of each other
  /// begins anew then, from one rank to the next. Throws PeerLost by GossipOptions::on_split.
  void mix();

  double step_size() const;
  GossipStatistics statistics() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tersor
