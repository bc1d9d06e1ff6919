// Carries a chunk through the steps of its schedule: make messages, send them, take what came.
#pragma once

#include "comm/collectives/messages.h"

#include <tersor/buffer.h>
#include <tersor/network.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tersor {

/// Carries one chunk at a time; then another one. Whoever drives it calls `advance` whenever
/// `can_advance`, or `tick`. Buffers grow to what `prepare` is given and then stay.
class ChunkTask {
 public:
  /// Makes the buffers large enough for a plan.
  void prepare(Transport& transport, const ChunkPlan& plan);

  /// Binds a chunk; its operations use the tags from `tag` on, one a step. Context and plan outlive
  /// the task.
  void start(ExchangeContext& context, const ChunkPlan& plan, std::uint32_t tag);

  /// True while messages of it are under way.
  bool on_wire() const { return handle_.valid(); }
  bool done() const { return plan_ == nullptr; }
  bool followed() const { return plan_->followed; }
  /// True where nothing remains but to decode: other chunks' sends go first.
  bool only_decodes() const { return on_wire() && next_busy(step_ + 1) == plan_->schedule->size(); }
  /// That of what is under way.
  Transport& transport() const;

  /// True where `advance` has work to do, because what it waited for is there.
  bool can_advance() { return !done() && (!on_wire() || handle_.test()); }
  /// Takes what came in one step and begins the next in which this rank has a part.
  void advance();
  /// For transports that queue. One tick goes by for each step, one more after the last; each takes
  /// what the tick before began and begins a step, so that ranks begin what they share in one
  /// order.
  void tick();
  /// Forgets the chunk, after an error.
  void drop();

 private:
  const Step& step() const { return (*plan_->schedule)[step_]; }
  std::size_t next_busy(std::size_t step) const;

  void begin_step();
  void begin_native();
  void make_messages();
  void start_messages();
  void finish_step();
  void collect();
  void decode_received();
  void take_native();

  const Lane& lane(std::size_t index) const { return plan_->lanes[index]; }
  void take_space();
  ByteSpan space() const;
  std::span<const Received> received(std::size_t lane) const;
  std::size_t make_message(std::size_t lane, ByteSpan space);
  ConstByteSpan own_message(const Parcel& parcel) const;
  std::size_t capacity(const Parcel& parcel) const;
  void count_peers();
  bool lanes_differ() const;
  ValueSpan bare_space(const Lane& lane, std::size_t offset) const;
  Operation operation() const;

  ExchangeContext* context_ = nullptr;
  Messages messages_;
  const ChunkPlan* plan_ = nullptr;
  std::uint32_t tag_ = 0;
  std::size_t step_ = 0;  ///< under way, or the next
  bool ticked_ = false;
  Handle handle_;
  Handle kept_;  ///< of the messages that the next step reduces
  /// What even steps made, and odd ones: messages, or bare values.
  std::array<std::shared_ptr<Buffer>, 2> made_ = {std::make_shared<Buffer>(),
                                                  std::make_shared<Buffer>()};
  std::array<Block, 2> blocks_;  ///< instead, of transports that have some
  Buffer workspace_, kept_memory_;
  std::vector<ConstByteSpan> own_;  ///< messages of the step's lanes
  std::vector<int> peers_;          ///< how many other ranks each goes to
  std::vector<Received> received_;  ///< in the order of lanes, then ranks
  std::vector<SendTo> sends_;
  std::vector<ReceiveFrom> receives_;
  std::vector<ValueSpan> parts_;
};

}  // namespace tersor
