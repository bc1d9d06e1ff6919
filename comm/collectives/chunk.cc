#include "comm/collectives/chunk.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tersor {
namespace {

bool fits(const Buffer& buffer, std::size_t bytes, Memory memory) {
  return buffer.bytes() >= bytes && (bytes == 0 || buffer.memory() == memory);
}

void grow(Buffer& buffer, std::size_t bytes, Memory memory) {
  if (!fits(buffer, bytes, memory)) buffer = Buffer(bytes, memory);
}

void grow(std::shared_ptr<Buffer>& buffer, std::size_t bytes, Memory memory) {
  if (!fits(*buffer, bytes, memory)) buffer = std::make_shared<Buffer>(bytes, memory);
}

/// Identifies the memory of a shard's raw values: a gradient, or 0 for the buffer.
std::size_t memory_of(const Shard& shard) {
  if (shard.frames.empty() || !shard.frames.front().in_place()) return 0;
  return std::size_t{1} + shard.frames.front().pieces.front().param;
}

bool provides_block(Transport& transport, const ChunkPlan& plan, std::size_t bytes) {
  return plan.memory == Memory::kHost && transport.block(bytes);
}

}  // namespace

void ChunkTask::prepare(Transport& transport, const ChunkPlan& plan) {
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    if (!provides_block(transport, plan, plan.buffer_bytes[i]))
      grow(buffers_[i], plan.buffer_bytes[i], plan.memory);
  grow(workspace_, plan.workspace_bytes, plan.memory);
  grow(round_state_, plan.round_state_bytes, plan.memory);
}

void ChunkTask::start(ExchangeContext& context, const ChunkPlan& plan, std::uint32_t tag) {
  prepare(*context.transport, plan);
  context_ = &context;
  messages_.bind(context, workspace_.span(), round_state_.span());
  plan_ = &plan;
  tag_ = tag;
  step_ = 0;
  ticked_ = false;
}

// After an error, the network may still read the host memory of the step.
void ChunkTask::drop() {
  if (on_wire() && plan_->memory == Memory::kHost)
    for (auto& buffer : buffers_) buffer = std::make_shared<Buffer>();
  handle_ = {};
  retained_ = {};
  blocks_ = {};
  plan_ = nullptr;
}

Transport& ChunkTask::transport() const {
  return on_wire() && step().is_native() ? *context_->sum_transport : *context_->transport;
}

std::size_t ChunkTask::next_step(std::size_t step) const {
  while (step < plan_->schedule->size() && (*plan_->schedule)[step].idle()) ++step;
  return step;
}

void ChunkTask::advance() {
  if (on_wire()) {
    finish_step();
    ++step_;
  }
  step_ = next_step(step_);
  if (step_ == plan_->schedule->size()) return drop();
  begin_step();
}

void ChunkTask::tick() {
  if (on_wire()) {
    handle_.wait_synchronize();  // of the stream: the host does not wait
    finish_step();
  }
  if (std::exchange(ticked_, true)) ++step_;
  if (step_ == plan_->schedule->size()) return drop();
  if (!step().idle()) begin_step();
}

// The first step uses the first tag in each schedule, and ranks with different schedules detect the
// mismatch there. A relay delivers a rank's first message in any step, and no other message
// follows.
Operation ChunkTask::operation() const {
  const auto step = static_cast<std::uint32_t>(this->step().forwards ? 0 : step_);
  return {.name = context_->call.name,
          .signature = plan_->signature == 0 ? context_->signature : plan_->signature,
          .agreement = context_->call.agreement,
          .tag = tag_ + step,
          .takes_all = tag_ != kUnorderedTag && !plan_->has_successor,
          .timeout = context_->call.timeout,
          .memory = context_->memory,
          .stream = context_->device.stream,
          .in_order = context_->device.in_order,
          .whole_bytes = context_->call.whole_bytes,
          .keep_alive = buffers_[step_ % 2],
          .block = this->step().is_native() ? nullptr : &blocks_[step_ % 2]};
}

ValueSpan ChunkTask::raw_space(const Shard& shard, std::size_t offset) const {
  const Dtype dtype = plan_->raw_dtypes[step_];
  if (shard.frames.empty()) return {nullptr, 0, dtype, plan_->memory};
  const FramePlan& frame = shard.frames.front();
  if (!frame.in_place())
    return {space().data() + offset, frame.rounds[step().round].native_count, dtype, plan_->memory};
  const Piece& piece = frame.pieces.front();
  return context_->bindings[piece.param].output.subspan(piece.range.first, piece.range.count);
}

// Receivers of the messages from two steps ago may still read a block, but not a buffer.
void ChunkTask::acquire_space() {
  Block& block = blocks_[step_ % 2];
  block = {};
  if (plan_->memory == Memory::kHost)
    block = context_->transport->block(plan_->buffer_bytes[step_ % 2]);
}

ByteSpan ChunkTask::space() const {
  const Block& block = blocks_[step_ % 2];
  return block ? block.writable() : buffers_[step_ % 2]->span();
}

void ChunkTask::begin_step() {
  acquire_space();
  messages_.set_step(step());
  if (step().is_native()) return begin_native();
  make_messages();
  start_messages();
  retained_ = {};
}

// Raw values: in place if the gradient itself is sent, otherwise in the buffer, shard by shard.
void ChunkTask::begin_native() {
  parts_.clear();
  std::size_t offset = 0;
  for (std::size_t i = 0; i < step().shard_count; ++i) {
    const Shard& shard = this->shard(step().first_shard + i);
    parts_.push_back(raw_space(shard, offset));
    offset += buffer_bytes(shard, step());
  }
  messages_.encode_native(std::span(plan_->shards).subspan(step().first_shard, step().shard_count),
                          parts_);
  Operation operation = this->operation();
  if (is_in_place()) operation.keep_alive = {};  // the caller owns the gradient
  Transport& transport = *context_->sum_transport;
  const bool merges = !transport.traits().deterministic;  // the order of addition is open
  if (merges) merge_parts();
  const std::vector<ValueSpan>& parts = merges ? merged_parts_ : parts_;
  handle_ = step().native == Native::kSum ? transport.sum(operation, parts)
                                          : transport.maximum(operation, parts);
}

// Joins parts only within a gradient or within the buffer, where all ranks have the same layout.
// The memories themselves lie in another order on each rank.
void ChunkTask::merge_parts() {
  const auto memory = [&](std::size_t part) { return memory_of(shard(step().first_shard + part)); };
  part_order_.resize(parts_.size());
  std::iota(part_order_.begin(), part_order_.end(), std::size_t{0});
  std::ranges::sort(part_order_, {}, [&](std::size_t part) {
    return std::pair(memory(part), parts_[part].pointer());
  });
  merged_parts_.clear();
  std::size_t last_memory = 0;
  for (const std::size_t index : part_order_) {
    const ValueSpan& part = parts_[index];
    if (part.empty()) continue;
    const ValueSpan* last = merged_parts_.empty() ? nullptr : &merged_parts_.back();
    if (last != nullptr && memory(index) == last_memory &&
        last->pointer() + last->bytes() == part.pointer())
      merged_parts_.back() =
          ValueSpan(last->pointer(), last->count() + part.count(), part.dtype(), part.memory());
    else
      merged_parts_.push_back(part);
    last_memory = memory(index);
  }
  merged_parts_.resize(parts_.size());
}

/// True if some raw values of the step are sent from the caller's memory.
bool ChunkTask::is_in_place() const {
  const auto shards = std::span(plan_->shards).subspan(step().first_shard, step().shard_count);
  return std::ranges::any_of(shards, [](const Shard& shard) {
    return !shard.frames.empty() && shard.frames.front().in_place();
  });
}

void ChunkTask::count_peers() {
  peers_.assign(step().shard_count, 0);
  for (const StepMessage& message : step().sends)
    for (std::size_t i = 0; message.peer != context_->ranks.rank && i < message.shards; ++i)
      peers_[message.shard - step().first_shard + i] += 1;
}

/// The received messages of a shard, by rank.
std::span<const Received> ChunkTask::received(std::size_t shard) const {
  return {std::ranges::lower_bound(received_, shard, {}, &Received::shard),
          std::ranges::upper_bound(received_, shard, {}, &Received::shard)};
}

std::size_t ChunkTask::make_message(std::size_t shard, ByteSpan space) {
  const int peers = peers_[shard - step().first_shard];
  if (step().on_send == OnSend::kEncode) return messages_.encode(this->shard(shard), space, peers);
  if (step().on_send == OnSend::kReduce)
    return messages_.reduce(this->shard(shard), received(shard), step().stage, space, peers);
  return messages_.forward(this->shard(shard), received(shard).front(), space, peers);
}

// Creates contiguous messages, because they are sent together.
void ChunkTask::make_messages() {
  own_.clear();
  count_peers();
  ByteSpan space = this->space();
  for (std::size_t i = step().first_shard; i < step().first_shard + step().shard_count; ++i) {
    const std::size_t bytes = make_message(i, space);
    own_.push_back(space.first(bytes));
    space = space.subspan(bytes);
  }
}

ConstByteSpan ChunkTask::own_message(const StepMessage& message) const {
  const std::size_t first = message.shard - step().first_shard;
  const ConstByteSpan last = own_[first + message.shards - 1];
  return {own_[first].data(), last.data() + last.size()};
}

/// Total capacity of a message's shards.
std::size_t ChunkTask::capacity(const StepMessage& message) const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < message.shards; ++i)
    bytes += message_bytes(shard(message.shard + i * message.stride), step());
  return bytes;
}

/// True if messages of an exchange have different capacities.
bool ChunkTask::shards_differ() const {
  return std::ranges::any_of(step().receives, [&](const StepMessage& message) {
    return capacity(message) != capacity(step().receives.front());
  });
}

// A device sends exactly the expected number of bytes. If shards differ, each message has its own
// size.
void ChunkTask::start_messages() {
  sends_.clear();
  receives_.clear();
  std::size_t largest = 0;
  for (const StepMessage& message : step().sends)
    if (message.peer != context_->ranks.rank)
      sends_.push_back({message.peer, own_message(message)});
  for (const StepMessage& message : step().receives) {
    largest = std::max(largest, capacity(message));
    if (message.peer != context_->ranks.rank)
      receives_.push_back({message.peer, capacity(message)});
  }
  Transport& transport = *context_->transport;
  const bool gathers = step().gathers && !(context_->on_device() && shards_differ());
  handle_ = gathers ? transport.all_gather(operation(), own_.front(), largest)
                    : transport.exchange(operation(), sends_, receives_);
}

void ChunkTask::finish_step() {
  if (step().is_native()) {
    decode_native_values();
  } else {
    collect();
    if (step().on_receive != OnReceive::kRetain) decode_received();
  }
  if (step().on_receive == OnReceive::kRetain) retained_ = std::move(handle_);
  handle_ = {};
}

void ChunkTask::collect() {
  received_.clear();
  for (const StepMessage& message : step().receives) {
    const bool own = message.peer == context_->ranks.rank;  // the last of the sent messages
    ConstByteSpan rest = own ? own_message(step().sends.back()) : handle_.received(message.peer);
    for (std::size_t left = message.shards, i = message.shard; left > 0;
         --left, i += message.stride) {
      const Received received{i, shard(i).source_rank.value_or(message.peer), rest};
      received_.push_back(left == 1 ? received : messages_.first_message(shard(i), received));
      rest = rest.subspan(received_.back().bytes.size());
    }
  }
  std::ranges::stable_sort(received_, {}, &Received::shard);
}

void ChunkTask::decode_received() {
  for (const Received& received : received_)
    messages_.check_splits(shard(received.shard), received);
  for (std::size_t first = 0, last = 0; first < received_.size(); first = last) {
    const std::size_t shard_index = received_[first].shard;
    while (last < received_.size() && received_[last].shard == shard_index) ++last;
    messages_.decode(shard(shard_index), std::span(received_).subspan(first, last - first),
                     step().stage, step().on_receive);
  }
}

void ChunkTask::decode_native_values() {
  for (std::size_t i = 0; i < step().shard_count; ++i) {
    const Shard& shard = this->shard(step().first_shard + i);
    if (!shard.frames.empty() && !shard.frames.front().in_place())
      messages_.decode_native(shard, parts_[i], step().on_receive);
  }
}

}  // namespace tersor
