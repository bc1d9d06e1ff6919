// The way of a chunk: one exchange among all ranks, or, in a hierarchy, three, one after the other:
// neighbours add it at their shards' owners (Flow::kScatter), the owners of each shard exchange it
// between the hosts by any flow, encoded, and hand it round to their neighbours (Flow::kGather).
#pragma once

#include "comm/collectives/chunk.h"
#include "comm/collectives/hierarchy.h"
#include "comm/collectives/plan.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tersor {

/// One exchange of a chunk.
struct Leg {
  ExchangeContext* context = nullptr;
  ChunkPlan plan = {};
  std::uint32_t tag = 0;  ///< its first, counted from the chunk's first
};

using Route = std::vector<Leg>;

/// Tags that each chunk takes, whatever its route.
inline constexpr std::uint32_t kTagsOfRoute = 6;

/// Plans routes: through the hierarchy where there is one.
class Router {
 public:
  /// `whole` is the context of all ranks; `hierarchy` may be null. Both outlive the routes.
  Router(ExchangeContext& whole, Hierarchy* hierarchy, unsigned threads)
      : whole_(whole), hierarchy_(hierarchy), threads_(threads) {}

  std::span<const Slot> slots() const { return whole_.slots; }
  /// Among whom encoded values are exchanged: all ranks, or the owners of a shard.
  int ranks() const;

  /// One chunk of whole slots; and the chunks that one slot is cut into, see plan.h.
  Route whole(std::span<const std::uint32_t> slots, Flow flow) const;
  std::vector<Route> cut(std::uint32_t slot, Flow flow, std::size_t chunk_count) const;

 private:
  PlanContext encoded_context(int shard) const;
  PlanContext within_context() const;
  bool stays_whole(const Slot& slot, Flow flow) const;
  Route through(std::span<const ChunkPlan* const> shards) const;

  ExchangeContext& whole_;
  Hierarchy* hierarchy_;
  unsigned threads_;
};

/// Routes of one exchange each.
std::vector<Route> direct_routes(ExchangeContext& context, std::vector<ChunkPlan> plans);

/// Carries one chunk at a time along its route; driven as a ChunkTask is, or by ticks.
class RouteTask {
 public:
  void prepare(const Route& route);
  /// The route outlives the task.
  void start(const Route& route, std::uint32_t tag);

  /// For transports that queue. One tick goes by for each of a route's tags, one more after the
  /// last; each finishes what the tick before began and begins the exchange of its tag, so that
  /// ranks whose routes differ begin the exchanges that they share in one order.
  void tick();

  bool on_wire() const { return task_.on_wire(); }
  bool done() const { return task_.done() && (route_ == nullptr || next_ == route_->size()); }
  bool only_decodes() const { return task_.only_decodes() && next_ == route_->size(); }
  Transport& transport() const { return task_.transport(); }
  bool can_advance() { return task_.can_advance(); }
  void advance();
  void drop();

 private:
  void start_leg();
  bool leg_begins() const;

  ChunkTask task_;
  const Route* route_ = nullptr;
  std::size_t next_ = 0;  ///< leg that was not started yet
  std::uint32_t tag_ = 0;
  std::uint32_t ticks_ = 0;
};

}  // namespace tersor
