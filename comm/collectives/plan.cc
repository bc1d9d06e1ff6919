// Cuts slots into chunks; see plan.h.
#include "comm/collectives/plan.h"

#include <algorithm>

namespace tersor {
namespace {

bool has_owners(Flow flow) { return flow == Flow::kTwoShot || flow == Flow::kNative; }

FramePlan& frame_for(Lane& lane, const Slot& slot, const Codec* codec) {
  for (FramePlan& frame : lane.frames)
    if (frame.codec == codec && frame.dtype == slot.dtype) return frame;
  lane.frames.push_back({.codec = codec, .dtype = slot.dtype});
  return lane.frames.back();
}

void add_piece(Lane& lane, const PlanContext& context, Piece piece) {
  if (piece.range.count == 0) return;
  const Slot& slot = context.slots[piece.slot];
  FramePlan& frame =
      frame_for(lane, slot, context.codec == nullptr ? slot.codec.get() : context.codec);
  frame.pieces.push_back(piece);
  const bool whole = piece.range.count == slot.count;
  frame.segments.push_back({.count = piece.range.count,
                            .parameter = slot.parameter,
                            .first_index = slot.first_index + piece.range.first,
                            .rows = whole ? slot.rows : 0,
                            .columns = whole ? slot.columns : 0,
                            .active = context.carried == Carried::kOwn ? slot.active : nullptr});
}

/// What of a slot travels in the exchange.
Range carried_range(const PlanContext& context, const Slot& slot) {
  return owned_range(slot.count, context.sharding.shard, context.sharding.shards, slot.parameter);
}

/// What of a slot travels in a lane.
Range lane_range(const PlanContext& context, const Slot& slot, Flow flow, int lane) {
  const Range carried = carried_range(context, slot);
  return has_owners(flow) ? owned_range(carried, lane, context.ranks, slot.parameter) : carried;
}

void size_frame(FramePlan& frame, const PlanContext& context, Round& round) {
  Plan plan = frame.codec->plan({.segments = frame.segments,
                                 .dtype = frame.dtype,
                                 .contributions = static_cast<std::size_t>(context.ranks),
                                 .memory = context.memory,
                                 .threads = context.threads});
  if (plan.rounds.size() != 1)
    throw InvalidArgument("codec " + frame.codec->spec().name +
                          " needs several rounds, which the collectives do not run yet");
  frame.frame_bytes = align_up(plan.frame_bytes, kSectionAlignment);
  frame.workspace_bytes = plan.workspace_bytes;
  round = std::move(plan.rounds.front());
}

void size_native(ChunkPlan& chunk, const Lane& lane, const Round& round) {
  chunk.native_counts.push_back(lane.frames.empty() ? 0 : round.native_count);
  if (lane.frames.empty()) return;
  chunk.native_dtype = round.native_dtype;
  const FramePlan& frame = lane.frames.front();
  chunk.in_place &= frame.pieces.size() == 1 && frame.codec->traits().lossless &&
                    round.native_dtype == frame.dtype;
}

void size_chunk(ChunkPlan& chunk, const PlanContext& context) {
  chunk.in_place = chunk.flow == Flow::kNative;
  for (Lane& lane : chunk.lanes) {
    Round round;
    for (FramePlan& frame : lane.frames) {
      size_frame(frame, context, round);
      lane.message_bytes += frame.frame_bytes;
    }
    if (chunk.flow == Flow::kNative) size_native(chunk, lane, round);
  }
}

ChunkPlan empty_chunk(const PlanContext& context, Flow flow) {
  ChunkPlan chunk{.flow = flow, .memory = context.memory};
  chunk.lanes.resize(flow == Flow::kOneShot ? 1 : context.ranks);
  return chunk;
}

// The values of `range` from the chunk's own offset on, at most `step`.
Range cut(Range range, std::size_t offset, std::size_t step) {
  if (offset >= range.count) return {range.first + range.count, 0};
  return {range.first + offset, std::min(step, range.count - offset)};
}

}  // namespace

std::size_t ChunkPlan::lane_bytes() const {
  std::size_t bytes = 0;
  for (const Lane& lane : lanes) bytes += lane.message_bytes;
  return bytes;
}

std::size_t ChunkPlan::largest_lane() const {
  std::size_t bytes = 0;
  for (const Lane& lane : lanes) bytes = std::max(bytes, lane.message_bytes);
  return bytes;
}

std::size_t ChunkPlan::workspace_bytes() const {
  std::size_t bytes = 0;
  for (const Lane& lane : lanes)
    for (const FramePlan& frame : lane.frames) bytes = std::max(bytes, frame.workspace_bytes);
  return bytes;
}

bool ChunkPlan::even() const {
  return std::ranges::all_of(
      lanes, [&](const Lane& lane) { return lane.message_bytes == lanes.front().message_bytes; });
}

ChunkPlan plan_whole(const PlanContext& context, std::span<const std::uint32_t> slots, Flow flow) {
  ChunkPlan chunk = empty_chunk(context, flow);
  for (const std::uint32_t index : slots) {
    const Slot& slot = context.slots[index];
    for (int lane = 0; lane < static_cast<int>(chunk.lanes.size()); ++lane)
      add_piece(chunk.lanes[lane], context, {index, lane_range(context, slot, flow, lane)});
  }
  size_chunk(chunk, context);
  return chunk;
}

std::vector<ChunkPlan> plan_cut(const PlanContext& context, std::uint32_t index, Flow flow,
                                std::size_t chunk_count) {
  const Slot& slot = context.slots[index];
  const int lanes = flow == Flow::kOneShot ? 1 : context.ranks;
  const std::size_t count = carried_range(context, slot).count;
  const std::size_t longest = align_up(ceil_div(count, lanes), kUnit);
  const std::size_t step = slot.codec->traits().divisible
                               ? align_up(std::max<std::size_t>(chunk_count / lanes, 1), kUnit)
                               : std::max(count, kUnit);
  std::vector<ChunkPlan> chunks;
  for (std::size_t offset = 0; offset < std::max<std::size_t>(longest, 1); offset += step) {
    ChunkPlan chunk = empty_chunk(context, flow);
    for (int lane = 0; lane < lanes; ++lane) {
      const Range whole = lane_range(context, slot, flow, lane);
      add_piece(chunk.lanes[lane], context, {index, cut(whole, offset, step)});
    }
    size_chunk(chunk, context);
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

ChunkPlan plan_pieces(const PlanContext& context, std::span<const std::vector<Piece>> lanes,
                      Flow flow) {
  ChunkPlan chunk = empty_chunk(context, flow);
  for (std::size_t lane = 0; lane < lanes.size(); ++lane)
    for (const Piece& piece : lanes[lane]) add_piece(chunk.lanes[lane], context, piece);
  size_chunk(chunk, context);
  return chunk;
}

std::vector<ChunkPlan> plan_lanes(const PlanContext& context, Flow flow, std::size_t chunk_count) {
  const std::size_t longest = context.slots.front().count;
  const bool divisible = context.slots.front().codec->traits().divisible;
  const std::size_t share = std::max<std::size_t>(chunk_count / context.ranks, 1);
  const std::size_t step = divisible ? align_up(share, kUnit) : std::max(longest, kUnit);
  std::vector<ChunkPlan> chunks;
  for (std::size_t offset = 0; offset < std::max<std::size_t>(longest, 1); offset += step) {
    ChunkPlan chunk = empty_chunk(context, flow);
    for (std::uint32_t lane = 0; lane < context.slots.size(); ++lane) {
      const Slot& slot = context.slots[lane];
      add_piece(chunk.lanes[lane], context, {lane, cut({0, slot.count}, offset, step)});
    }
    size_chunk(chunk, context);
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

}  // namespace tersor
