// Cuts slots into chunks. See plan.h.
#include "comm/collectives/plan.h"

#include <utility>

namespace tersor {
namespace {

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
                            .active = context.carried == Carried::kOfHost ? nullptr : slot.active});
}

int lanes_of(Exchange last, const PlanContext& context) {
  return tersor::lanes_of(last, context.ranks, context.grid);
}

/// The range of a slot sent in a shard.
Range lane_range(const PlanContext& context, const Slot& slot, Exchange last, int lane) {
  if (slot.collective == Collective::kReduceScatter && last != Exchange::kGather)
    return shard_range(slot.count, lane, context.ranks);
  const std::size_t unit = slot.unit();
  const Range carried = owned_range(slot.count, context.sharding.shard, context.sharding.shards,
                                    slot.parameter, unit);
  if (last == Exchange::kGather) return carried;
  if (last == Exchange::kTwoShot)
    return context.grid.lane_range(carried, static_cast<std::size_t>(lane), slot.parameter, unit);
  return owned_range(carried, lane, context.ranks, slot.parameter, unit);
}

void size_frame(FramePlan& frame, const PlanContext& context) {
  Plan plan = frame.codec->plan({.segments = frame.segments,
                                 .dtype = frame.dtype,
                                 .contributions = static_cast<std::size_t>(context.ranks),
                                 .memory = context.memory,
                                 .threads = context.threads});
  frame.frame_bytes = align_up(plan.frame_bytes, kSectionAlignment);
  frame.workspace_bytes = plan.workspace_bytes;
  frame.kept_bytes = align_up(plan.kept_bytes, kWorkspaceAlignment);
  frame.rounds = std::move(plan.rounds);
}

/// `shares`: the divisors for the ranks exchanging the shards.
Lanes empty_lanes(const PlanContext& context, std::size_t count, const Shares& shares) {
  return Lanes(count, Lane{.contributions = static_cast<std::size_t>(context.ranks),
                           .place = context.place,
                           .carried = context.carried,
                           .shares = shares});
}

/// The divisors if all values are added at once.
Shares shares_at_once(const PlanContext& context) { return Grid(1).shares(context.adds); }

Shares shares_of(const PlanContext& context, Exchange last) {
  return last == Exchange::kTwoShot ? context.grid.shares(context.adds) : shares_at_once(context);
}

Lanes sized(Lanes lanes, const PlanContext& context) {
  for (Lane& lane : lanes)
    for (FramePlan& frame : lane.frames) {
      size_frame(frame, context);
      lane.message_bytes += frame.frame_bytes;
    }
  return lanes;
}

// At most `step` values of `range`, from the chunk's offset.
Range cut(Range range, std::size_t offset, std::size_t step) {
  if (offset >= range.count) return {range.first + range.count, 0};
  return {range.first + offset, std::min(step, range.count - offset)};
}

/// Returns at least one chunk. Shard l of each chunk is a part of lanes[l].
std::vector<Lanes> cut_lanes(const PlanContext& context, std::span<const Piece> lanes,
                             const Shares& shares, std::size_t chunk_count,
                             std::size_t most_lanes = kLanesOfChunk) {
  std::vector<Lanes> chunks;
  for (const std::vector<Piece>& pieces :
       cut_pieces(context.slots, lanes, chunk_count, most_lanes)) {
    Lanes chunk = empty_lanes(context, lanes.size(), shares);
    for (std::size_t i = 0; i < lanes.size(); ++i) add_piece(chunk[i], context, pieces[i]);
    chunks.push_back(sized(std::move(chunk), context));
  }
  return chunks;
}

// Steps alternate between two buffers, because a step may read the messages of the preceding step.
void make_room(ChunkPlan& chunk, std::size_t index) {
  const Step& step = (*chunk.schedule)[index];
  std::size_t bytes = 0;
  for (std::size_t i = step.first_lane; i < step.first_lane + step.lane_count; ++i)
    bytes += made_bytes(chunk.lanes[i], step);
  std::size_t& room = chunk.made_bytes[index % 2];
  room = std::max(room, bytes);
}

void make_room(ChunkPlan& chunk, Lane& lane) {
  for (FramePlan& frame : lane.frames) {
    chunk.workspace_bytes = std::max(chunk.workspace_bytes, frame.workspace_bytes);
    frame.kept_offset = chunk.kept_bytes;
    chunk.kept_bytes += frame.kept_bytes;
  }
}

/// The dtype of all shards of a native step. The shards share a codec.
Dtype bare_dtype(const ChunkPlan& chunk, const Step& step) {
  for (std::size_t i = step.first_lane; i < step.first_lane + step.lane_count; ++i)
    if (!chunk.lanes[i].frames.empty())
      return chunk.lanes[i].frames.front().rounds[step.round].native_dtype;
  return Dtype::kF32;
}

}  // namespace

std::size_t made_bytes(const Lane& lane, const Step& step) {
  if (!step.is_native()) return lane.message_bytes;
  if (lane.frames.empty() || lane.frames.front().in_place()) return 0;
  return align_up(lane.frames.front().bare_bytes(step.round), kSectionAlignment);
}

Lanes plan_whole(const PlanContext& context, std::span<const std::uint32_t> slots, Exchange last) {
  const int count = lanes_of(last, context);
  Lanes lanes = empty_lanes(context, static_cast<std::size_t>(count), shares_of(context, last));
  for (const std::uint32_t slot : slots)
    for (int lane = 0; lane < count; ++lane)
      add_piece(lanes[static_cast<std::size_t>(lane)], context,
                {slot, lane_range(context, context.slots[slot], last, lane)});
  return sized(std::move(lanes), context);
}

std::vector<Lanes> plan_cut(const PlanContext& context, std::uint32_t slot, Exchange last,
                            std::size_t chunk_count) {
  std::vector<Piece> lanes;
  for (int lane = 0; lane < lanes_of(last, context); ++lane)
    lanes.push_back({slot, lane_range(context, context.slots[slot], last, lane)});
  return cut_lanes(context, lanes, shares_of(context, last), chunk_count,
                   last == Exchange::kTwoShot ? context.grid.most_lanes_of_chunk() : kLanesOfChunk);
}

std::vector<Lanes> plan_slots(const PlanContext& context, std::span<const int> slots,
                              std::size_t chunk_count) {
  std::vector<Piece> lanes;
  for (const int slot : slots) {
    const auto index = static_cast<std::uint32_t>(slot);
    lanes.push_back({index, {0, context.slots[index].count}});
  }
  return cut_lanes(context, lanes, context.grid.shares(context.adds), chunk_count,
                   context.grid.most_lanes_of_chunk());
}

std::vector<std::vector<Piece>> cut_pieces(std::span<const Slot> slots,
                                           std::span<const Piece> pieces, std::size_t chunk_count,
                                           std::size_t most_lanes) {
  std::size_t longest = 1;
  for (const Piece& piece : pieces) longest = std::max(longest, piece.range.count);
  const Slot& slot = slots[pieces.front().slot];
  const bool divisible = slot.codec->traits().divisible;
  const std::size_t step =
      divisible ? lane_length(chunk_count, pieces.size(), slot.unit(), most_lanes, longest)
                : longest;
  std::vector<std::vector<Piece>> chunks;
  for (std::size_t offset = 0; offset < longest; offset += step) {
    std::vector<Piece>& chunk = chunks.emplace_back();
    for (const Piece& piece : pieces) chunk.push_back({piece.slot, cut(piece.range, offset, step)});
  }
  return chunks;
}

std::size_t joined_rows(const Slot& slot, std::size_t columns) {
  const CodecTraits traits = slot.codec->traits();
  if (traits.block != 0 && columns % traits.block == 0) return 1;
  if (columns >= CodecTraits{}.unit) return 0;
  const std::array<Segment, 2> rows = {Segment{.count = columns}, Segment{.count = columns}};
  const auto frame_bytes = [&](std::size_t count) {
    const std::span segments = std::span(rows).first(count);
    return slot.codec->plan({.segments = segments, .dtype = slot.dtype}).frame_bytes;
  };
  const bool saves = frame_bytes(2) - frame_bytes(1) < columns * dtype_bytes(slot.dtype);
  return saves ? 0 : traits.unit;
}

Lanes plan_rows(const PlanContext& context, std::size_t columns, Range rows) {
  Lanes lanes = empty_lanes(context, context.slots.size(), shares_at_once(context));
  for (std::uint32_t i = 0; i < lanes.size(); ++i) {
    const Slot& slot = context.slots[i];
    const Range values = cut({0, slot.count}, rows.first * columns, rows.count * columns);
    if (values.count == 0 && rows.first != 0) continue;
    const bool joined = joined_rows(slot, columns) != 0;
    const std::size_t step = joined ? values.count : columns;
    FramePlan& frame = frame_for(lanes[i], slot, slot.codec.get());
    for (std::size_t first = values.first; first < values.first + values.count; first += step) {
      add_piece(lanes[i], context, {i, {first, step}});
      frame.segments.back().first_index =
          joined ? first : first / columns * align_up(columns, slot.codec->traits().unit);
    }
  }
  return sized(std::move(lanes), context);
}

Lanes plan_pieces(const PlanContext& context, std::span<const std::vector<Piece>> lanes) {
  Lanes planned = empty_lanes(context, lanes.size(), shares_at_once(context));
  for (std::size_t lane = 0; lane < lanes.size(); ++lane)
    for (const Piece& piece : lanes[lane]) add_piece(planned[lane], context, piece);
  return sized(std::move(planned), context);
}

ChunkPlan make_chunk(std::shared_ptr<const Schedule> schedule, Lanes lanes, Memory memory) {
  ChunkPlan chunk{.schedule = std::move(schedule), .memory = memory, .lanes = std::move(lanes)};
  for (Lane& lane : chunk.lanes) make_room(chunk, lane);
  for (std::size_t i = 0; i < chunk.schedule->size(); ++i) {
    make_room(chunk, i);
    chunk.bare_dtypes.push_back(bare_dtype(chunk, (*chunk.schedule)[i]));
  }
  return chunk;
}

}  // namespace tersor
