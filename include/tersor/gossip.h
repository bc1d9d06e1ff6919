// Averaging among neighbours. Each rank keeps its own weights and moves them towards the weights of
// a few neighbours. docs/systems/gossip.md lists cases in which to avoid this method.
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

/// A neighbour and its mixing weight.
struct Edge {
  int rank = 0;       ///< the neighbour
  double weight = 0;  ///< the mixing weight, above 0
};

/// The neighbours of each rank. A rank's own weight is 1 minus the weights of its edges. Weights
/// are symmetric and above 0, with a sum of at most 1 per rank. The graph must be connected.
class Topology {
 public:
  /// edges[r] lists the neighbours of rank r. Throws InvalidArgumentError for an invalid graph. The
  /// message names the ranks; for an unconnected graph, the components.
  explicit Topology(std::vector<std::vector<Edge>> edges);

  /// Each rank has the two adjacent ranks as neighbours.
  static Topology ring(int ranks);
  /// A grid of rows · columns ranks, with wrap-around.
  static Topology torus(int rows, int columns);
  /// Each rank has neighbours at distances of 1, 2, 4, … in both directions.
  static Topology exponential(int ranks);
  /// `name` is "ring", "torus" (as square as possible) or "exponential". Throws
  /// InvalidArgumentError.
  static Topology named(std::string_view name, int ranks);

  /// Returns the number of ranks.
  int ranks() const { return static_cast<int>(edges_.size()); }
  /// Returns the neighbours of `rank`.
  const std::vector<Edge>& edges(int rank) const { return edges_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<std::vector<Edge>> edges_;
};

/// The action of `mix` after a complete step if lost ranks cut this rank off from other ranks.
enum class OnSplit : std::uint8_t {
  kThrow,     ///< throws PeerLostError once per loss; later calls mix with the connected ranks
  kContinue,  ///< continues; GossipStatistics::cut_off lists the other ranks
};

/// Options of a Gossip. Codec, step size and checksum must be equal on all ranks.
struct GossipOptions {
  /// A spec without "+ef". The algorithm itself sends the remainder later.
  std::string codec = "int8";
  /// The fraction of each step towards the neighbours, above 0 and at most 1. By default (0), 1 for
  /// codecs that keep at least 0.6 of a normal vector's energy (quantisers). Other codecs use half
  /// of the kept fraction.
  double step_size = 0;
  Checksum checksum = Checksum::kOn;  ///< True if frames have a checksum
  /// A neighbour without a message for this time is lost. Ranks that wait in `mix` send heartbeats.
  std::chrono::milliseconds timeout = kDefaultTimeout;
  OnSplit on_split = OnSplit::kThrow;  ///< action of `mix` after a split
};

/// Statistics of this rank.
struct GossipStatistics {
  std::uint64_t steps = 0;       ///< completed steps
  std::uint64_t sent_bytes = 0;  ///< bytes to all neighbours
  std::vector<int> lost;         ///< lost neighbours, in the order of loss
  /// Ranks without a path to this rank, ascending. Empty while all ranks except lost ranks are
  /// connected.
  std::vector<int> cut_off;
};

/// CHOCO-SGD (Koloskova, Stich and Jaggi 2019, arXiv:1902.00340). x are the weights of a rank; y is
/// the estimate of x that the rank and its neighbours share. Each step sends q = Q(x - y) to the
/// neighbours. Then y += q and x += step_size * sum of weight * (y of the neighbour - y). The
/// estimates agree, because all ranks decode the same frames. y and the sum are f64, so the mean
/// over ranks does not drift. A gossip takes five times the memory of the weights, for any number
/// of neighbours.
///
/// One thread at a time may call a Gossip.
class Gossip {
 public:
  /// A collective call. Throws InvalidArgumentError for a codec with several rounds. The first step
  /// throws TransportError if topologies, codecs or step sizes differ between ranks.
  Gossip(Transport& transport, Topology topology, const GossipOptions& options = {});
  ~Gossip();
  Gossip(const Gossip&) = delete;
  Gossip& operator=(const Gossip&) = delete;

  /// Adds f32 weights in host memory, which must outlive the gossip. Call `add` before the first
  /// step, with the same names and counts on all ranks.
  void add(std::string name, ValueSpan weights);
  /// Encodes the change of the weights and sends the frame. Throws InvalidArgumentError if a weight
  /// is not finite; nothing is sent then.
  void begin();
  /// Calls `begin` if there was no call since the last step. Waits for the neighbours' frames and
  /// moves the weights. The weights may change between `begin` and `mix`. After the loss of a
  /// neighbour, its mixing weight goes to this rank, and all shared estimates start again, rank by
  /// rank. Throws PeerLostError according to GossipOptions::on_split.
  void mix();

  /// Returns the step size in use.
  double step_size() const;
  /// Returns the statistics so far.
  GossipStatistics statistics() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tersor
