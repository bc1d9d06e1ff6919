// See route.h.
#include "comm/collectives/route.h"

#include <algorithm>
#include <utility>

namespace tersor {
namespace {

const ChunkPlan kNothing;

void add_pieces(const ChunkPlan& plan, std::vector<Piece>& pieces) {
  for (const Lane& lane : plan.lanes)
    for (const FramePlan& frame : lane.frames)
      pieces.insert(pieces.end(), frame.pieces.begin(), frame.pieces.end());
}

}  // namespace

int Router::ranks() const {
  return hierarchy_ == nullptr ? whole_.ranks : hierarchy_->groups().hosts();
}

PlanContext Router::encoded_context(int shard) const {
  PlanContext context{
      .slots = whole_.slots, .ranks = ranks(), .threads = threads_, .memory = whole_.memory};
  if (hierarchy_ == nullptr) return context;
  context.sharding = {shard, hierarchy_->groups().shards()};
  context.carried = Carried::kOfHost;
  return context;
}

PlanContext Router::within_context() const {
  return {.slots = whole_.slots,
          .ranks = static_cast<int>(hierarchy_->groups().neighbours(whole_.rank).size()),
          .threads = threads_,
          .codec = &hierarchy_->codec(),
          .memory = whole_.memory};
}

// A library below that adds values where they lie cuts them by itself.
bool Router::stays_whole(const Slot& slot, Flow flow) const {
  const bool in_place = flow == Flow::kNative && slot.codec->traits().lossless;
  return in_place && whole_.on_device() && whole_.transport->traits().queues;
}

Route Router::whole(std::span<const std::uint32_t> slots, Flow flow) const {
  if (hierarchy_ == nullptr)
    return {{.context = &whole_, .plan = plan_whole(encoded_context(0), slots, flow)}};
  std::vector<ChunkPlan> plans;
  std::vector<const ChunkPlan*> shards;
  for (int shard = 0; shard < hierarchy_->groups().shards(); ++shard)
    plans.push_back(plan_whole(encoded_context(shard), slots, flow));
  for (const ChunkPlan& plan : plans) shards.push_back(&plan);
  return through(shards);
}

std::vector<Route> Router::cut(std::uint32_t slot, Flow flow, std::size_t chunk_count) const {
  if (stays_whole(slots()[slot], flow))
    chunk_count = std::max(chunk_count, ranks() * align_up(slots()[slot].count, kUnit));
  if (hierarchy_ == nullptr)
    return direct_routes(whole_, plan_cut(encoded_context(0), slot, flow, chunk_count));
  const auto shards = static_cast<std::size_t>(hierarchy_->groups().shards());
  std::vector<std::vector<ChunkPlan>> plans;
  std::size_t chunks = 0;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    plans.push_back(
        plan_cut(encoded_context(static_cast<int>(shard)), slot, flow, chunk_count / shards));
    chunks = std::max(chunks, plans.back().size());
  }
  std::vector<Route> routes;
  std::vector<const ChunkPlan*> of_chunk(shards);
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    for (std::size_t shard = 0; shard < shards; ++shard)
      of_chunk[shard] = chunk < plans[shard].size() ? &plans[shard][chunk] : &kNothing;
    routes.push_back(through(of_chunk));
  }
  return routes;
}

// What is exchanged of a shard between the hosts is what its owner gets and gives within them.
Route Router::through(std::span<const ChunkPlan* const> shards) const {
  std::vector<std::vector<Piece>> lanes(shards.size());
  for (std::size_t shard = 0; shard < shards.size(); ++shard)
    add_pieces(*shards[shard], lanes[shard]);
  const auto place = static_cast<std::size_t>(hierarchy_->groups().place(whole_.rank));
  const PlanContext within = within_context();
  Route route;
  route.push_back({&hierarchy_->within(), plan_pieces(within, lanes, Flow::kScatter), 0});
  if (place < lanes.size() && !lanes[place].empty())
    route.push_back({&hierarchy_->between(), *shards[place], 2});
  route.push_back({&hierarchy_->within(), plan_pieces(within, lanes, Flow::kGather), 4});
  return route;
}

std::vector<Route> direct_routes(ExchangeContext& context, std::vector<ChunkPlan> plans) {
  std::vector<Route> routes;
  for (ChunkPlan& plan : plans) routes.push_back({{&context, std::move(plan), 0}});
  return routes;
}

void RouteTask::prepare(const Route& route) {
  for (const Leg& leg : route) task_.prepare(leg.plan);
}

void RouteTask::start(const Route& route, std::uint32_t tag) {
  route_ = &route;
  next_ = 0;
  tag_ = tag;
  ticks_ = 0;
}

void RouteTask::start_leg() {
  const Leg& leg = (*route_)[next_++];
  task_.start(*leg.context, leg.plan, tag_ + leg.tag);
}

// A leg begins where the one before it ended, so that its first message leaves without delay.
void RouteTask::advance() {
  if (!task_.done()) task_.advance();
  if (!task_.done() || next_ == route_->size()) return;
  start_leg();
  task_.advance();
}

bool RouteTask::leg_begins() const {
  return next_ < route_->size() && (*route_)[next_].tag == ticks_;
}

void RouteTask::tick() {
  if (!task_.done()) {
    task_.wait_synchronize();  // of the stream: the host goes on
    task_.advance();
  }
  if (leg_begins()) {
    start_leg();
    task_.advance();
  }
  ++ticks_;
}

void RouteTask::drop() {
  task_.drop();
  if (route_ != nullptr) next_ = route_->size();
}

}  // namespace tersor
