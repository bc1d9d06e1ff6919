// Encodes shards into messages and decodes messages into parameters by preparing the codec's calls.
// A message holds a shard's frames, each at a multiple of 16 bytes. On a device, each frame
// occupies its capacity, because the host does not wait for actual lengths.
#pragma once

#include "comm/collectives/context.h"

#include <cstddef>
#include <span>
#include <vector>

namespace tersor {

/// A shard's message, and the rank that encoded the message.
struct Received {
  std::size_t shard = 0;
  int rank = 0;
  ConstByteSpan bytes = {};
};

/// Makes the codec's calls for one chunk at a time. Reuses its arrays for chunks of the same shape.
class MessageCodec {
 public:
  /// Sets the context and the memory for the next calls: scratch memory, and the round state of
  /// codecs with several rounds.
  void bind(ExchangeContext& context, ByteSpan workspace, ByteSpan round_state) {
    context_ = &context;
    workspace_ = workspace;
    round_state_ = round_state;
  }
  /// Sets the codec round and the kind of messages of the next calls.
  void set_step(const Step& step) {
    round_ = step.round;
    sums_ = step.sums;
  }

  /// Encodes a shard's parameters. Returns the message's bytes. `peers`: number of destinations.
  std::size_t encode(const Shard& shard, ByteSpan message, int peers);

  /// Adds the messages of an owned shard after `stage` reductions and encodes the sum. This
  /// function and the following ones throw WireError with the operation and the rank of a damaged
  /// frame.
  std::size_t reduce(const Shard& shard, std::span<const Received> messages, std::size_t stage,
                     ByteSpan sum, int peers);

  /// Copies a message and checks the checksums.
  std::size_t forward(const Shard& shard, const Received& received, ByteSpan message, int peers);

  /// The first shard's message within a message of several shards.
  Received first_message(const Shard& shard, const Received& several) const;

  /// Throws WireError if a message of rows uses splits different from this rank's, before decoding.
  /// On a device, decoding detects the mismatch.
  void check_splits(const Shard& shard, const Received& message) const;

  /// Adds the messages of a shard after `stage` reductions and assigns the sum to the parameters'
  /// outputs, or absorbs the messages.
  void decode(const Shard& shard, std::span<const Received> messages, std::size_t stage,
              OnReceive action);

  /// encode_native writes the raw values of shards. decode_native reads the sums of a shard.
  void encode_native(std::span<const Shard> shards, std::span<const ValueSpan> values);
  void decode_native(const Shard& shard, ConstValueSpan values, OnReceive action);

 private:
  void gather_inputs(const Shard& shard, const FramePlan& frame);
  void gather_owners(const FramePlan& frame, std::size_t stage);
  void gather_outputs(const Shard& shard, const FramePlan& frame);
  void gather_memories(const FramePlan& frame);
  ConstByteSpan next_frame(const FramePlan& frame, bool sums, const Received& message,
                           std::size_t& offset) const;
  void next_frames(const FramePlan& frame, bool sums, std::span<const Received> messages);
  std::size_t written_bytes(const FramePlan& frame, bool sums, ConstByteSpan target) const {
    return context_->on_device() ? frame.bytes_of(sums) : frame_bytes(target);
  }
  void copy(ByteSpan to, ConstByteSpan from) const;
  void check_checksum(ConstByteSpan frame, int rank) const;
  StateWords* words_out() { return context_->on_device() ? nullptr : &words_out_; }
  RandomSource random(const Shard& shard, std::size_t stage) const;
  FrameIdentity identity(const Shard& shard) const;
  /// The factor for values added after `stage` reductions.
  float factor(const Shard& shard, std::size_t stage) const {
    return context_->call.reduction == Reduction::kMean ? 1.0f / shard.divisors[stage] : 1.0f;
  }
  Execution execution(const FramePlan& frame) const;
  void encode_native(const Shard& shard, ValueSpan values);
  EncodeCall encode_call(const Shard& shard, const FramePlan& frame);
  DecodeCall decode_call(const Shard& shard, const FramePlan& frame, float factor);
  /// Counts the time from `begin` to `end` as encoding, reducing or decoding a frame.
  void count_time(const FramePlan& frame, TraceType type, Clock::time_point begin,
                  Clock::time_point end);
  void trace(const FramePlan& frame, TraceType type, Clock::time_point begin, double value_seconds);
  void count_bytes(const FramePlan& frame, std::size_t bytes, int peers);
  void count_overflows();
  /// Counts a written frame since `start`. Returns the bytes to the next frame.
  std::size_t count_written(const FramePlan& frame, ByteSpan target, TraceType type,
                            Clock::time_point start, int peers);
  template <typename Read>
  void read_frames(std::span<const Received> messages, const Read& read);
  [[noreturn]] void throw_damaged(int rank, const WireError& error) const;

  ExchangeContext* context_ = nullptr;
  ByteSpan workspace_, round_state_;
  std::uint8_t round_ = 0;
  bool sums_ = false;     ///< Step::sums
  StateWords words_out_;  ///< of each call; only the counter is used
  std::vector<ConstValueSpan> inputs_;
  std::vector<ValueSpan> outputs_;
  std::vector<SegmentMemory> memories_;
  std::vector<SegmentState> states_;
  std::vector<ConstByteSpan> frames_;
  std::vector<std::size_t> offsets_;  ///< of the next frame in each message
};

}  // namespace tersor
