#include "comm/collectives/message_codec.h"

#include "codecs/frame.h"
#include "kernels/device/device_memory.h"
#include "kernels/scalar/philox.h"

#include <tersor/error.h>

#include <algorithm>
#include <string>

namespace tersor {
namespace {

template <typename Span>
Span part(const Span& span, Range range) {
  return span.empty() ? Span{} : span.subspan(range.first, range.count);
}

SegmentState state_part(const SegmentState& state, Range range) {
  return {part(state.residual_in, range), part(state.residual_out, range)};
}

/// `shard_count`: the values of a shard of a reduce-scatter.
SegmentState sender_part(const ParameterFeedback& feedback, Range range, std::size_t shard_count) {
  if (feedback.encoded_shards.empty())
    return state_part(feedback.sender, {range.first - feedback.sender_first, range.count});
  const int shard = index_in(feedback.encoded_shards, static_cast<int>(range.first / shard_count));
  const std::size_t first =
      static_cast<std::size_t>(shard) * shard_count + range.first % shard_count;
  return state_part(feedback.sender, {first, range.count});
}

// A host's sum is stored separately if the values are read-only.
ConstValueSpan input_part(const Shard& shard, const ParameterBinding& param, Range range) {
  if (shard.source == Source::kHostSum && !param.host_sum.empty())
    return part(param.host_sum, range);
  return param.input.subspan(range.first, range.count);
}

ValueSpan output_part(const Shard& shard, const ParameterBinding& param, Range range) {
  if (shard.source == Source::kForHostSum && !param.host_sum.empty())
    return part(param.host_sum, range);
  if (param.window) return param.output;
  return param.output.subspan(range.first - param.output_first, range.count);
}

// The owner's residuals start at the owned part of the parameter, stage by stage.
SegmentState owner_part(const ParameterFeedback& feedback, Range range, std::size_t stage) {
  const std::size_t first = range.first - feedback.owned.stages[stage].first;
  return state_part(feedback.owner, {feedback.owned.offset(stage) + first, range.count});
}

}  // namespace

void MessageCodec::gather_inputs(const Shard& shard, const FramePlan& frame) {
  inputs_.clear();
  states_.clear();
  for (const Piece& piece : frame.pieces) {
    inputs_.push_back(input_part(shard, context_->bindings[piece.param], piece.range));
    if (!frame.codec->has_feedback()) continue;
    const std::size_t shard_count = context_->params[piece.param].count / context_->ranks.count;
    states_.push_back(sender_part(context_->feedback[piece.param], piece.range, shard_count));
  }
}

void MessageCodec::gather_owners(const FramePlan& frame, std::size_t stage) {
  states_.clear();
  for (const Piece& piece : frame.pieces) {
    const ParameterFeedback& feedback = context_->feedback[piece.param];
    if (!feedback.owner.residual_out.empty())
      states_.push_back(owner_part(feedback, piece.range, stage));
  }
}

void MessageCodec::gather_memories(const FramePlan& frame) {
  memories_.clear();
  for (const Piece& piece : frame.pieces) {
    const SegmentMemory& memory = context_->feedback[piece.param].memory;
    if (!memory.out.empty()) memories_.push_back(memory);
  }
}

void MessageCodec::gather_outputs(const Shard& shard, const FramePlan& frame) {
  outputs_.clear();
  for (const Piece& piece : frame.pieces)
    outputs_.push_back(output_part(shard, context_->bindings[piece.param], piece.range));
}

// Takes the frame at `offset` of a message, without a check: the codec checks the frame.
ConstByteSpan MessageCodec::next_frame(const FramePlan& frame, bool sums, const Received& message,
                                       std::size_t& offset) const try {
  offset = std::min(offset, message.bytes.size());
  const ConstByteSpan rest = message.bytes.subspan(offset);
  const std::size_t bytes = written_bytes(frame, sums, rest);
  offset += align_up(bytes, kSectionAlignment);
  return rest.first(bytes);
} catch (const WireError& error) {
  throw_damaged(message.rank, error);
}

void MessageCodec::next_frames(const FramePlan& frame, bool sums,
                               std::span<const Received> messages) {
  frames_.clear();
  for (std::size_t i = 0; i < messages.size(); ++i)
    frames_.push_back(next_frame(frame, sums, messages[i], offsets_[i]));
}

void MessageCodec::throw_damaged(int rank, const WireError& error) const {
  throw WireError(std::string(context_->call.name) + " on rank " +
                  std::to_string(context_->ranks.rank) + ": the frame of rank " +
                  std::to_string(rank) + ": " + error.what());
}

// Codecs do not know ranks. If a codec refuses the frames, each frame is read alone to find the
// damaged one. The outputs are invalid in any case.
template <typename Read>
void MessageCodec::read_frames(std::span<const Received> messages, const Read& read) {
  try {
    read(std::span<const ConstByteSpan>(frames_));
  } catch (const WireError&) {
    for (std::size_t i = 0; i < frames_.size(); ++i) try {
        read(std::span<const ConstByteSpan>(frames_).subspan(i, 1));
      } catch (const WireError& error) {
        throw_damaged(messages[i].rank, error);
      }
    throw;
  }
}

// Distinct for the sender and for the owner after each reduction.
RandomSource MessageCodec::random(const Shard& shard, std::size_t stage) const {
  const auto group_rank = static_cast<std::uint32_t>(shard.group_rank);
  return {
      .key = kernels::noise_key(context_->call.seed, group_rank, static_cast<std::uint32_t>(stage)),
      .step = context_->call.step};
}

FrameIdentity MessageCodec::identity(const Shard& shard) const {
  return {.signature = shard.signature == 0 ? context_->signature : shard.signature,
          .checksum = context_->call.checksum,
          .round = round_};
}

Execution MessageCodec::execution(const FramePlan& frame) const {
  Execution execution;
  execution.threads = context_->threads;
  execution.workspace = workspace_;
  execution.round_state = round_state_.subspan(frame.round_state_offset, frame.round_state_bytes);
  execution.memory = context_->memory;
  execution.stream = context_->device.stream;
  execution.fault = context_->device.fault;
  execution.overflows = context_->device.overflows;
  return execution;
}

// Ignores times of a device, because they only cover queueing.
void MessageCodec::count_time(const FramePlan& frame, TraceType type, Clock::time_point begin,
                              Clock::time_point end) {
  if (context_->on_device()) return;
  const double each =
      std::chrono::duration<double>(end - begin).count() / static_cast<double>(frame.count);
  for (const Piece& piece : frame.pieces) {
    ParamCounters& counters = context_->counters[piece.param];
    (type == TraceType::kDecode ? counters.decode_seconds : counters.encode_seconds) +=
        each * static_cast<double>(piece.range.count);
  }
  if (context_->trace != nullptr) trace(frame, type, begin, each);
}

void MessageCodec::trace(const FramePlan& frame, TraceType type, Clock::time_point begin,
                         double value_seconds) {
  for (const Piece& piece : frame.pieces) {
    const std::chrono::duration<double> share(value_seconds *
                                              static_cast<double>(piece.range.count));
    const Clock::time_point end = begin + std::chrono::duration_cast<Clock::duration>(share);
    context_->trace->record({type, context_->step_on_host(), piece.param, begin, end});
    begin = end;
  }
}

void MessageCodec::count_bytes(const FramePlan& frame, std::size_t bytes, int peers) {
  const double each = static_cast<double>(bytes) * peers / static_cast<double>(frame.count);
  for (const Piece& piece : frame.pieces)
    context_->counters[piece.param].sent_bytes +=
        static_cast<std::uint64_t>(each * static_cast<double>(piece.range.count));
}

// A device counts overflows itself.
void MessageCodec::count_overflows() {
  if (context_->on_device()) return;
  const std::uint64_t before =
      context_->call.words == nullptr ? 0 : context_->call.words->overflows;
  context_->overflows += words_out_.overflows - std::min(before, words_out_.overflows);
  words_out_ = {};
}

std::size_t MessageCodec::count_written(const FramePlan& frame, ByteSpan target, TraceType type,
                                        Clock::time_point start, int peers) {
  const std::size_t bytes = written_bytes(frame, sums_, target);
  count_time(frame, type, start, Clock::now());
  count_bytes(frame, bytes, peers);
  count_overflows();
  return align_up(bytes, kSectionAlignment);
}

std::size_t MessageCodec::encode(const Shard& shard, ByteSpan message, int peers) {
  std::size_t offset = 0;
  for (const FramePlan& frame : shard.frames) {
    const auto start = Clock::now();
    const ByteSpan target = message.subspan(offset, frame.frame_bytes);
    frame.codec->encode(encode_call(shard, frame), target);
    offset += count_written(frame, target, TraceType::kEncode, start, peers);
  }
  return offset;
}

std::size_t MessageCodec::reduce(const Shard& shard, std::span<const Received> messages,
                                 std::size_t stage, ByteSpan sum, int peers) {
  offsets_.assign(messages.size(), 0);
  std::size_t offset = 0;
  for (const FramePlan& frame : shard.frames) {
    const auto start = Clock::now();
    const bool of_sums = stage > 1;  // the owners of an earlier dimension encoded the messages
    next_frames(frame, of_sums, messages);
    gather_owners(frame, stage - 1);
    const ByteSpan target = sum.subspan(offset, frame.result_bytes);
    read_frames(messages, [&](std::span<const ConstByteSpan> frames) {
      frame.codec_of(of_sums).reduce({.segments = frame.segments,
                                      .dtype = frame.dtype,
                                      .frames = frames,
                                      .factor = factor(shard, stage - 1),
                                      .states = states_,
                                      .words = context_->call.words,
                                      .words_out = words_out(),
                                      .random = random(shard, stage),
                                      .identity = identity(shard),
                                      .execution = execution(frame)},
                                     target);
    });
    offset += count_written(frame, target, TraceType::kReduce, start, peers);
  }
  return offset;
}

// Checks before forwarding, because later receivers would blame the wrong rank.
void MessageCodec::check_checksum(ConstByteSpan frame, int rank) const {
  if (context_->on_device() || context_->call.checksum == Checksum::kOff) return;
  try {
    encoding::check_checksum(frame, context_->threads);
  } catch (const WireError& error) {
    throw_damaged(rank, error);
  }
}

std::size_t MessageCodec::forward(const Shard& shard, const Received& received, ByteSpan message,
                                  int peers) {
  std::size_t bytes = 0;
  for (const FramePlan& frame : shard.frames) {
    const ConstByteSpan forwarded = next_frame(frame, sums_, received, bytes);
    check_checksum(forwarded, received.rank);
    count_bytes(frame, forwarded.size(), peers);
  }
  copy(message, received.bytes.first(std::min(bytes, received.bytes.size())));
  return bytes;
}

void MessageCodec::copy(ByteSpan to, ConstByteSpan from) const {
  if (context_->on_device())
    return kernels::copy_bytes(to.data(), from.data(), from.size(), context_->device.stream);
  std::ranges::copy(from, to.begin());
}

Received MessageCodec::first_message(const Shard& shard, const Received& several) const {
  std::size_t end = 0;
  for (const FramePlan& frame : shard.frames) next_frame(frame, sums_, several, end);
  return {several.shard, several.rank, several.bytes.first(std::min(end, several.bytes.size()))};
}

EncodeCall MessageCodec::encode_call(const Shard& shard, const FramePlan& frame) {
  gather_inputs(shard, frame);
  gather_memories(frame);
  return {.segments = frame.segments,
          .gradients = inputs_,
          .states = states_,
          .memories = memories_,
          .words = context_->call.words,
          .words_out = words_out(),
          .random = random(shard, 0),
          .identity = identity(shard),
          .execution = execution(frame),
          .contributions = shard.contributions};
}

DecodeCall MessageCodec::decode_call(const Shard& shard, const FramePlan& frame, float factor) {
  gather_outputs(shard, frame);
  gather_memories(frame);
  return {.segments = frame.segments,
          .frames = {},
          .outputs = outputs_,
          .mode = DecodeMode::kAssign,
          .factor = factor,
          .memories = memories_,
          .identity = identity(shard),
          .execution = execution(frame),
          .window_first = frame.pieces.empty()
                              ? std::nullopt
                              : context_->bindings[frame.pieces.front().param].window,
          .contributions = shard.contributions};
}

void MessageCodec::check_splits(const Shard& shard, const Received& message) const try {
  if (shard.signature == 0 || context_->on_device()) return;
  const FrameHeader found = read_frame_header(message.bytes);
  if (found.signature == shard.signature) return;
  const FramePlan& own = shard.frames.front();
  const std::size_t all = own.pieces.empty() ? 0 : context_->params[own.pieces.front().param].count;
  throw WireError(found.count == own.count
                      ? "the rank expects another number of rows than this rank sends, or sends "
                        "more rows than this rank expects"
                      : "the rank sent " + std::to_string(found.count) +
                            " values, but this rank expects " + std::to_string(all));
} catch (const WireError& error) {
  throw_damaged(message.rank, error);
}

void MessageCodec::decode(const Shard& shard, std::span<const Received> messages, std::size_t stage,
                          OnReceive action) {
  offsets_.assign(messages.size(), 0);
  for (const FramePlan& frame : shard.frames) {
    const auto start = Clock::now();
    next_frames(frame, sums_, messages);
    DecodeCall call = decode_call(shard, frame, factor(shard, stage));
    read_frames(messages, [&](std::span<const ConstByteSpan> frames) {
      call.frames = frames;
      action == OnReceive::kAbsorb ? frame.codec->absorb(call, {})
                                   : frame.codec_of(sums_).decode(call);
    });
    count_time(frame, TraceType::kDecode, start, Clock::now());
  }
}

// The factor is applied to the sent values, so `decode_native` needs none. Shards have similar
// lengths and are often short, so a single time measurement covers all.
void MessageCodec::encode_native(std::span<const Shard> shards, std::span<const ValueSpan> values) {
  const auto start = Clock::now();
  for (std::size_t i = 0; i < shards.size(); ++i)
    if (!shards[i].frames.empty()) encode_native(shards[i], values[i]);
  const Clock::duration each = (Clock::now() - start) / shards.size();
  for (const Shard& shard : shards)
    if (!shard.frames.empty())
      count_time(shard.frames.front(), TraceType::kEncode, start, start + each);
  count_overflows();
}

void MessageCodec::encode_native(const Shard& shard, ValueSpan values) {
  const FramePlan& frame = shard.frames.front();
  frame.codec->encode_native(encode_call(shard, frame), factor(shard, 0), values);
}

void MessageCodec::decode_native(const Shard& shard, ConstValueSpan values, OnReceive action) {
  if (shard.frames.empty()) return;
  const FramePlan& frame = shard.frames.front();
  const auto start = Clock::now();
  const DecodeCall call = decode_call(shard, frame, 1.0f);
  action == OnReceive::kAbsorb ? frame.codec->absorb(call, values)
                               : frame.codec->decode_native(call, values);
  count_time(frame, TraceType::kDecode, start, Clock::now());
}

}  // namespace tersor
