// One chunk on its way: encode, exchange, reduce, exchange, decode, as far as its flow has them.
#pragma once

#include "comm/collectives/messages.h"

#include <tersor/buffer.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace tersor {

/// Carries one chunk at a time through its stages; then another one. Whoever drives it calls
/// `advance` whenever `can_advance`. Buffers grow to what `prepare` is given and then stay.
class ChunkTask {
 public:
  /// Makes the buffers large enough for a plan.
  void prepare(const ChunkPlan& plan);

  /// Binds a chunk; its operations use `tag` and `tag` + 1. Context and plan outlive the task.
  void start(ExchangeContext& context, const ChunkPlan& plan, std::uint32_t tag);

  /// True while messages of it are under way.
  bool on_wire() const { return stage_ != Stage::kEncode && stage_ != Stage::kDone; }
  bool done() const { return stage_ == Stage::kDone; }
  /// True where nothing remains but to decode: other chunks' sends go first.
  bool only_decodes() const { return stage_ == Stage::kGather; }
  Transport& transport() const { return *context_->transport; }

  /// True where `advance` has work to do, because what it waited for is there.
  bool can_advance();
  /// Does the work of one stage and starts the next exchange.
  void advance();
  /// Waits for what is under way; throws what ended it.
  void wait_synchronize();
  /// Forgets the chunk, after an error.
  void drop();

 private:
  enum class Stage { kEncode, kScatter, kGather, kDone };

  void start_native();
  void start_scatter();
  void start_gather(const std::shared_ptr<Buffer>& message, std::size_t bytes);
  Handle gather(const Operation& operation);
  void encode_and_gather(const Lane& lane);
  void finish_scatter();
  void finish_gather();
  void finish_native();
  void collect(int own_rank, ConstByteSpan own);
  const Lane& own_lane() const { return plan_->lanes[context_->rank]; }
  Operation operation(std::uint32_t phase, const std::shared_ptr<Buffer>& sent) const;
  ByteSpan message_space(int lane) const;
  ValueSpan native_space(std::size_t lane, std::size_t offset) const;

  ExchangeContext* context_ = nullptr;
  Messages messages_;
  const ChunkPlan* plan_ = nullptr;
  Stage stage_ = Stage::kDone;
  std::uint32_t tag_ = 0;
  Handle handle_;
  std::shared_ptr<Buffer> sends_ = std::make_shared<Buffer>();  ///< all lanes' messages, or values
  std::shared_ptr<Buffer> sum_ = std::make_shared<Buffer>();    ///< what this rank gathers to all
  Buffer workspace_;
  ConstByteSpan gathered_;  ///< this rank's own message of the gather
  std::vector<ConstByteSpan> received_;
  std::vector<ConstByteSpan> outgoing_;
  std::vector<std::size_t> capacities_;
  std::vector<ValueSpan> parts_;
};

}  // namespace tersor
