// Runs a chunk through the steps of its schedule: create messages, send them, and handle received
// messages.
#pragma once

#include "comm/collectives/message_codec.h"

#include <tersor/buffer.h>
#include <tersor/network.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tersor {

/// Runs chunks, one at a time. The driver calls `advance` whenever `can_advance`, or calls `tick`.
/// Buffers grow to the size needed by `prepare` and never shrink.
class ChunkTask {
 public:
  /// Allocates buffers for a plan.
  void prepare(Transport& transport, const ChunkPlan& plan);

  /// Starts a chunk with the tags from `tag`, one per step. Context and plan must outlive the task.
  void start(ExchangeContext& context, const ChunkPlan& plan, std::uint32_t tag);

  /// True while messages of the chunk are under way.
  bool on_wire() const { return handle_.valid(); }
  bool done() const { return plan_ == nullptr; }
  bool has_successor() const { return plan_->has_successor; }
  /// True if only decoding remains: sends of other chunks go first.
  bool only_decodes() const { return on_wire() && next_step(step_ + 1) == plan_->schedule->size(); }
  /// The transport of the operation under way.
  Transport& transport() const;

  /// True if `advance` has work to do, because the awaited messages have arrived.
  bool can_advance() { return !done() && (!on_wire() || handle_.test()); }
  /// Handles the received messages of a step and begins the next step with work for this rank.
  void advance();
  /// For queueing transports. Each step takes a tick, and the last step takes another tick. Each
  /// tick handles the messages of the previous tick and begins a step. All ranks therefore begin
  /// shared operations in the same order.
  void tick();
  /// Drops the chunk after an error.
  void drop();

 private:
  const Step& step() const { return (*plan_->schedule)[step_]; }
  std::size_t next_step(std::size_t step) const;

  void begin_step();
  void begin_native();
  void merge_parts();
  void make_messages();
  void start_messages();
  void finish_step();
  void collect();
  void decode_received();
  void decode_native_values();

  const Shard& shard(std::size_t index) const { return plan_->shards[index]; }
  void acquire_space();
  ByteSpan space() const;
  std::span<const Received> received(std::size_t shard) const;
  std::size_t make_message(std::size_t shard, ByteSpan space);
  ConstByteSpan own_message(const StepMessage& message) const;
  std::size_t capacity(const StepMessage& message) const;
  void count_peers();
  bool shards_differ() const;
  ValueSpan raw_space(const Shard& shard, std::size_t offset) const;
  bool is_in_place() const;
  Operation operation() const;

  ExchangeContext* context_ = nullptr;
  MessageCodec messages_;
  const ChunkPlan* plan_ = nullptr;
  std::uint32_t tag_ = 0;
  std::size_t step_ = 0;  ///< current or next step
  bool ticked_ = false;
  Handle handle_;
  Handle retained_;  ///< of the messages reduced by the next step
  /// The results of even and odd steps: messages or raw values.
  std::array<std::shared_ptr<Buffer>, 2> buffers_ = {std::make_shared<Buffer>(),
                                                     std::make_shared<Buffer>()};
  std::array<Block, 2> blocks_;  ///< used instead, if the transport has blocks
  Buffer workspace_, round_state_;
  std::vector<ConstByteSpan> own_;  ///< messages of the step's shards
  std::vector<int> peers_;          ///< number of other ranks receiving each message
  std::vector<Received> received_;  ///< ordered by shard, then by rank
  std::vector<SendTo> sends_;
  std::vector<ReceiveFrom> receives_;
  std::vector<ValueSpan> parts_;
  std::vector<std::size_t> part_order_;  ///< by memory, then by address
  std::vector<ValueSpan> merged_parts_;
};

}  // namespace tersor
