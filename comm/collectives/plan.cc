// Cuts parameters into chunks. See plan.h.
#include "comm/collectives/plan.h"

#include <utility>

namespace tersor {
namespace {

FramePlan& frame_for(Shard& shard, const ExchangeParameter& param, const Codec* codec) {
  for (FramePlan& frame : shard.frames)
    if (frame.codec == codec && frame.dtype == param.dtype) return frame;
  shard.frames.push_back({.codec = codec, .dtype = param.dtype});
  return shard.frames.back();
}

void add_piece(Shard& shard, const PlanContext& context, Piece piece) {
  if (piece.range.count == 0) return;
  const ExchangeParameter& param = context.params[piece.param];
  FramePlan& frame =
      frame_for(shard, param, context.codec == nullptr ? param.codec.get() : context.codec);
  frame.pieces.push_back(piece);
  frame.count += piece.range.count;
  const bool whole = piece.range.count == param.count;
  frame.segments.push_back({.count = piece.range.count,
                            .parameter = param.parameter,
                            .first_index = param.first_index + piece.range.first,
                            .rows = whole ? param.rows : 0,
                            .columns = whole ? param.columns : 0,
                            .active = context.source == Source::kHostSum ? nullptr : param.active});
}

int shards_of(Exchange last, const PlanContext& context) {
  return tersor::shards_of(last, context.ranks, context.grid);
}

/// The range of a parameter sent in a shard.
Range range_of_shard(const PlanContext& context, const ExchangeParameter& param, Exchange last,
                     int shard) {
  if (param.collective == Collective::kReduceScatter && last != Exchange::kGather)
    return shard_range(param.count, shard, context.ranks);
  const std::size_t unit = param.unit();
  const Range own = owned_range(param.count, context.sharding.host_shard,
                                context.sharding.host_shards, param.parameter, unit);
  if (last == Exchange::kGather) return own;
  if (last == Exchange::kTwoShot)
    return context.grid.range_of_shard(own, static_cast<std::size_t>(shard), param.parameter, unit);
  return owned_range(own, shard, context.ranks, param.parameter, unit);
}

void size_frame(FramePlan& frame, const PlanContext& context) {
  const PlanRequest request{.segments = frame.segments,
                            .dtype = frame.dtype,
                            .contributions = static_cast<std::size_t>(context.ranks),
                            .memory = context.memory,
                            .threads = context.threads};
  Plan plan = frame.codec->plan(request);
  frame.frame_bytes = frame.result_bytes = align_up(plan.frame_bytes, kSectionAlignment);
  frame.workspace_bytes = plan.workspace_bytes;
  frame.round_state_bytes = align_up(plan.round_state_bytes, kWorkspaceAlignment);
  frame.rounds = std::move(plan.rounds);
  if (const Codec& results = frame.codec->results(); &results != frame.codec)
    frame.result_bytes = align_up(results.plan(request).frame_bytes, kSectionAlignment);
}

/// `divisors`: the divisors for the ranks exchanging the shards.
Shards empty_shards(const PlanContext& context, std::size_t count, const Divisors& divisors) {
  return Shards(count, Shard{.contributions = static_cast<std::size_t>(context.ranks),
                             .group_rank = context.group_rank,
                             .source = context.source,
                             .divisors = divisors});
}

/// The divisors if all values are added at once.
Divisors flat_divisors(const PlanContext& context) { return Grid(1).divisors(context.addends); }

Divisors divisors(const PlanContext& context, Exchange last) {
  return last == Exchange::kTwoShot ? context.grid.divisors(context.addends)
                                    : flat_divisors(context);
}

Shards with_sizes(Shards shards, const PlanContext& context) {
  for (Shard& shard : shards)
    for (FramePlan& frame : shard.frames) {
      size_frame(frame, context);
      shard.message_bytes += frame.frame_bytes;
      shard.result_bytes += frame.result_bytes;
    }
  return shards;
}

// At most `step` values of `range`, from the chunk's offset.
Range cut(Range range, std::size_t offset, std::size_t step) {
  if (offset >= range.count) return {range.first + range.count, 0};
  return {range.first + offset, std::min(step, range.count - offset)};
}

/// Returns at least one chunk. Shard l of each chunk is a part of shards[l].
std::vector<Shards> cut_shards(const PlanContext& context, std::span<const Piece> shards,
                               const Divisors& divisors, std::size_t chunk_count,
                               std::size_t max_shards = kShardsOfChunk) {
  std::vector<Shards> chunks;
  for (const std::vector<Piece>& pieces :
       cut_pieces(context.params, shards, chunk_count, max_shards)) {
    Shards chunk = empty_shards(context, shards.size(), divisors);
    for (std::size_t i = 0; i < shards.size(); ++i) add_piece(chunk[i], context, pieces[i]);
    chunks.push_back(with_sizes(std::move(chunk), context));
  }
  return chunks;
}

// Steps alternate between two buffers, because a step may read the messages of the preceding step.
void size_memory(ChunkPlan& chunk, std::size_t index) {
  const Step& step = (*chunk.schedule)[index];
  std::size_t bytes = 0;
  for (std::size_t i = step.first_shard; i < step.first_shard + step.shard_count; ++i)
    bytes += buffer_bytes(chunk.shards[i], step);
  std::size_t& made = chunk.buffer_bytes[index % 2];
  made = std::max(made, bytes);
}

void size_memory(ChunkPlan& chunk, Shard& shard) {
  for (FramePlan& frame : shard.frames) {
    chunk.workspace_bytes = std::max(chunk.workspace_bytes, frame.workspace_bytes);
    frame.round_state_offset = chunk.round_state_bytes;
    chunk.round_state_bytes += frame.round_state_bytes;
  }
}

/// The dtype of all shards of a native step. The shards share a codec.
Dtype raw_dtype(const ChunkPlan& chunk, const Step& step) {
  for (std::size_t i = step.first_shard; i < step.first_shard + step.shard_count; ++i)
    if (!chunk.shards[i].frames.empty())
      return chunk.shards[i].frames.front().rounds[step.round].native_dtype;
  return Dtype::kF32;
}

}  // namespace

std::size_t buffer_bytes(const Shard& shard, const Step& step) {
  if (!step.is_native()) return message_bytes(shard, step);
  if (shard.frames.empty() || shard.frames.front().in_place()) return 0;
  return align_up(shard.frames.front().raw_bytes(step.round), kSectionAlignment);
}

Shards plan_whole(const PlanContext& context, std::span<const std::uint32_t> params,
                  Exchange last) {
  const int count = shards_of(last, context);
  Shards shards = empty_shards(context, static_cast<std::size_t>(count), divisors(context, last));
  for (const std::uint32_t param : params)
    for (int shard = 0; shard < count; ++shard)
      add_piece(shards[static_cast<std::size_t>(shard)], context,
                {param, range_of_shard(context, context.params[param], last, shard)});
  return with_sizes(std::move(shards), context);
}

std::vector<Shards> plan_cut(const PlanContext& context, std::uint32_t param, Exchange last,
                             std::size_t chunk_count) {
  std::vector<Piece> shards;
  for (int shard = 0; shard < shards_of(last, context); ++shard)
    shards.push_back({param, range_of_shard(context, context.params[param], last, shard)});
  return cut_shards(
      context, shards, divisors(context, last), chunk_count,
      last == Exchange::kTwoShot ? context.grid.max_shards_of_chunk() : kShardsOfChunk);
}

std::vector<Shards> plan_params(const PlanContext& context, std::span<const int> params,
                                std::size_t chunk_count) {
  std::vector<Piece> shards;
  for (const int param : params) {
    const auto index = static_cast<std::uint32_t>(param);
    shards.push_back({index, {0, context.params[index].count}});
  }
  return cut_shards(context, shards, context.grid.divisors(context.addends), chunk_count,
                    context.grid.max_shards_of_chunk());
}

std::vector<std::vector<Piece>> cut_pieces(std::span<const ExchangeParameter> params,
                                           std::span<const Piece> pieces, std::size_t chunk_count,
                                           std::size_t max_shards) {
  std::size_t longest = 1;
  for (const Piece& piece : pieces) longest = std::max(longest, piece.range.count);
  const ExchangeParameter& param = params[pieces.front().param];
  const bool divisible = param.codec->traits().divisible;
  const std::size_t step =
      divisible ? shard_length(chunk_count, pieces.size(), param.unit(), max_shards, longest)
                : longest;
  std::vector<std::vector<Piece>> chunks;
  for (std::size_t offset = 0; offset < longest; offset += step) {
    std::vector<Piece>& chunk = chunks.emplace_back();
    for (const Piece& piece : pieces)
      chunk.push_back({piece.param, cut(piece.range, offset, step)});
  }
  return chunks;
}

std::size_t joined_rows(const ExchangeParameter& param, std::size_t columns) {
  const CodecTraits traits = param.codec->traits();
  if (traits.block != 0 && columns % traits.block == 0) return 1;
  if (columns >= CodecTraits{}.unit) return 0;
  const std::array<Segment, 2> rows = {Segment{.count = columns}, Segment{.count = columns}};
  const auto frame_bytes = [&](std::size_t count) {
    const std::span segments = std::span(rows).first(count);
    return param.codec->plan({.segments = segments, .dtype = param.dtype}).frame_bytes;
  };
  const bool saves = frame_bytes(2) - frame_bytes(1) < columns * dtype_bytes(param.dtype);
  return saves ? 0 : traits.unit;
}

Shards plan_rows(const PlanContext& context, std::size_t columns, Range rows) {
  Shards shards = empty_shards(context, context.params.size(), flat_divisors(context));
  for (std::uint32_t i = 0; i < shards.size(); ++i) {
    const ExchangeParameter& param = context.params[i];
    const Range values = cut({0, param.count}, rows.first * columns, rows.count * columns);
    if (values.count == 0 && rows.first != 0) continue;
    const bool joined = joined_rows(param, columns) != 0;
    const std::size_t step = joined ? values.count : columns;
    FramePlan& frame = frame_for(shards[i], param, param.codec.get());
    for (std::size_t first = values.first; first < values.first + values.count; first += step) {
      add_piece(shards[i], context, {i, {first, step}});
      frame.segments.back().first_index =
          joined ? first : first / columns * align_up(columns, param.codec->traits().unit);
    }
  }
  return with_sizes(std::move(shards), context);
}

Shards plan_pieces(const PlanContext& context, std::span<const std::vector<Piece>> shards) {
  Shards planned = empty_shards(context, shards.size(), flat_divisors(context));
  for (std::size_t shard = 0; shard < shards.size(); ++shard)
    for (const Piece& piece : shards[shard]) add_piece(planned[shard], context, piece);
  return with_sizes(std::move(planned), context);
}

ChunkPlan make_chunk(std::shared_ptr<const Schedule> schedule, Shards shards, Memory memory) {
  ChunkPlan chunk{.schedule = std::move(schedule), .memory = memory, .shards = std::move(shards)};
  for (Shard& shard : chunk.shards) size_memory(chunk, shard);
  for (std::size_t i = 0; i < chunk.schedule->size(); ++i) {
    size_memory(chunk, i);
    chunk.raw_dtypes.push_back(raw_dtype(chunk, (*chunk.schedule)[i]));
  }
  return chunk;
}

}  // namespace tersor
