// See chunk.h.
#include "comm/collectives/chunk.h"

namespace tersor {
namespace {

bool fits(const Buffer& buffer, std::size_t bytes, Memory memory) {
  return buffer.bytes() >= bytes && (bytes == 0 || buffer.memory() == memory);
}

void grow(std::shared_ptr<Buffer>& buffer, std::size_t bytes, Memory memory) {
  if (!fits(*buffer, bytes, memory)) buffer = std::make_shared<Buffer>(bytes, memory);
}

std::size_t native_bytes(const ChunkPlan& plan) {
  std::size_t count = 0;
  for (const std::size_t lane : plan.native_counts) count += lane;
  return count * dtype_bytes(plan.native_dtype);
}

}  // namespace

void ChunkTask::prepare(const ChunkPlan& plan) {
  const bool native = plan.flow == Flow::kNative;
  const std::size_t sent = !native ? plan.lane_bytes() : plan.in_place ? 0 : native_bytes(plan);
  grow(sends_, sent, plan.memory);
  if (plan.flow == Flow::kTwoShot) grow(sum_, plan.largest_lane(), plan.memory);
  if (!fits(workspace_, plan.workspace_bytes(), plan.memory))
    workspace_ = Buffer(plan.workspace_bytes(), plan.memory);
}

void ChunkTask::start(ExchangeContext& context, const ChunkPlan& plan, std::uint32_t tag) {
  prepare(plan);
  context_ = &context;
  messages_.bind(context);
  plan_ = &plan;
  tag_ = tag;
  stage_ = Stage::kEncode;
}

void ChunkTask::drop() {
  handle_ = {};
  stage_ = Stage::kDone;
}

// The first exchange of any flow has the first tag, so that ranks that go another way meet there.
Operation ChunkTask::operation(std::uint32_t phase, const std::shared_ptr<Buffer>& sent) const {
  return {.name = context_->name,
          .signature = context_->signature,
          .tag = tag_ + phase,
          .timeout = context_->timeout,
          .memory = context_->memory,
          .stream = context_->stream,
          .in_order = context_->in_order,
          .keep_alive = sent};
}

ByteSpan ChunkTask::message_space(int lane) const {
  std::size_t offset = 0;
  for (int i = 0; i < lane; ++i) offset += plan_->lanes[i].message_bytes;
  return sends_->span().subspan(offset, plan_->lanes[lane].message_bytes);
}

bool ChunkTask::can_advance() {
  if (stage_ == Stage::kDone) return false;
  return stage_ == Stage::kEncode || handle_.test();
}

void ChunkTask::wait_synchronize() {
  if (on_wire()) handle_.wait_synchronize();
}

void ChunkTask::advance() {
  switch (stage_) {
    case Stage::kEncode:
      if (plan_->flow == Flow::kNative) return start_native();
      if (plan_->flow == Flow::kOneShot) return encode_and_gather(plan_->lanes.front());
      if (plan_->flow == Flow::kGather) return encode_and_gather(own_lane());
      return start_scatter();
    case Stage::kScatter:
      return finish_scatter();
    case Stage::kGather:
      return plan_->flow == Flow::kNative ? finish_native() : finish_gather();
    case Stage::kDone:
      return;
  }
}

ValueSpan ChunkTask::native_space(std::size_t lane, std::size_t offset) const {
  const auto& frames = plan_->lanes[lane].frames;
  if (frames.empty()) return {nullptr, 0, plan_->native_dtype, plan_->memory};
  if (!plan_->in_place)
    return {sends_->pointer() + offset, plan_->native_counts[lane], plan_->native_dtype,
            plan_->memory};
  const Piece& piece = frames.front().pieces.front();
  return context_->slots[piece.slot].output.subspan(piece.range.first, piece.range.count);
}

// Bare values: in place where the gradient is what travels, else through the buffer, lane by lane.
void ChunkTask::start_native() {
  parts_.clear();
  std::size_t offset = 0;
  for (std::size_t i = 0; i < plan_->lanes.size(); ++i) {
    const Lane& lane = plan_->lanes[i];
    const std::size_t bytes = plan_->native_counts[i] * dtype_bytes(plan_->native_dtype);
    const ValueSpan values = native_space(i, offset);
    messages_.encode_native(lane, values, workspace_.span());
    parts_.push_back(values);
    offset += bytes;
  }
  handle_ = context_->transport->sum(operation(0, sends_), parts_);
  stage_ = Stage::kGather;
}

void ChunkTask::finish_native() {
  if (!plan_->in_place)
    for (std::size_t i = 0; i < plan_->lanes.size(); ++i)
      messages_.decode_native(plan_->lanes[i], parts_[i], workspace_.span());
  handle_ = {};
  stage_ = Stage::kDone;
}

void ChunkTask::start_scatter() {
  outgoing_.clear();
  capacities_.assign(context_->ranks, own_lane().message_bytes);
  for (int lane = 0; lane < context_->ranks; ++lane) {
    const int peers = lane == context_->rank ? 0 : 1;
    const std::size_t bytes =
        messages_.encode(plan_->lanes[lane], message_space(lane), workspace_.span(), peers);
    outgoing_.push_back(message_space(lane).first(bytes));
  }
  handle_ = context_->transport->all_to_all(operation(0, sends_), outgoing_, capacities_);
  stage_ = Stage::kScatter;
}

void ChunkTask::collect(int own_rank, ConstByteSpan own) {
  received_.clear();
  for (int rank = 0; rank < context_->ranks; ++rank)
    received_.push_back(rank == own_rank ? own : handle_.received(rank));
}

void ChunkTask::finish_scatter() {
  collect(context_->rank, outgoing_[context_->rank]);
  if (plan_->flow == Flow::kScatter) {
    messages_.decode(own_lane(), received_, 0, workspace_.span());
    handle_ = {};
    stage_ = Stage::kDone;
    return;
  }
  const std::size_t bytes =
      messages_.reduce(own_lane(), received_, sum_->span(), workspace_.span());
  start_gather(sum_, bytes);
}

void ChunkTask::encode_and_gather(const Lane& lane) {
  const std::size_t bytes =
      messages_.encode(lane, sends_->span(), workspace_.span(), context_->ranks - 1);
  start_gather(sends_, bytes);
}

// A device sends as many bytes as others expect: where lanes differ, each its own.
Handle ChunkTask::gather(const Operation& operation) {
  if (!context_->on_device() || plan_->even())
    return context_->transport->all_gather(operation, gathered_, plan_->largest_lane());
  outgoing_.assign(context_->ranks, gathered_);
  capacities_.clear();
  for (const Lane& lane : plan_->lanes) capacities_.push_back(lane.message_bytes);
  return context_->transport->all_to_all(operation, outgoing_, capacities_);
}

void ChunkTask::start_gather(const std::shared_ptr<Buffer>& message, std::size_t bytes) {
  const std::uint32_t phase = plan_->flow == Flow::kTwoShot ? 1 : 0;
  gathered_ = message->span().first(bytes);
  handle_ = gather(operation(phase, message));
  stage_ = Stage::kGather;
}

void ChunkTask::finish_gather() {
  collect(context_->rank, gathered_);
  if (plan_->flow == Flow::kOneShot) {
    messages_.decode(plan_->lanes.front(), received_, 0, workspace_.span());
  } else {
    for (int lane = 0; lane < context_->ranks; ++lane)
      messages_.decode(plan_->lanes[lane], std::span(received_).subspan(lane, 1), lane,
                       workspace_.span());
  }
  handle_ = {};
  stage_ = Stage::kDone;
}

}  // namespace tersor
