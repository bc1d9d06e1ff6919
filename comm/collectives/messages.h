// Encodes lanes into messages and decodes messages into slots: the codec's calls, made ready.
// A message is a lane's frames, one behind the other, each at a multiple of 16 bytes. On a device,
// where nobody waits to learn how long a frame became, each takes the room of its capacity.
#pragma once

#include "comm/collectives/context.h"

#include <cstddef>
#include <span>
#include <vector>

namespace tersor {

/// A lane's message, and the rank that made it.
struct Received {
  std::size_t lane = 0;
  int rank = 0;
  ConstByteSpan bytes = {};
};

/// Makes the codec's calls of one chunk at a time. Keeps its arrays, so that a second chunk of the
/// same shape allocates nothing.
class Messages {
 public:
  /// Whose calls are to be made from now on, and with what memory: scratch, and what codecs of
  /// several rounds remember of the chunk.
  void bind(ExchangeContext& context, ByteSpan workspace, ByteSpan kept) {
    context_ = &context;
    workspace_ = workspace;
    kept_ = kept;
  }
  /// Which round of the codecs the next calls belong to.
  void set_round(std::uint8_t round) { round_ = round; }

  /// Encodes a lane's slots; returns the message's true bytes. `peers` is how many ranks it goes
  /// to.
  std::size_t encode(const Lane& lane, ByteSpan message, int peers);

  /// Adds the messages of a lane that this rank owns after so many reductions and encodes the sum.
  /// Throws WireError that names the operation and the rank whose frame is damaged; so do those
  /// below.
  std::size_t reduce(const Lane& lane, std::span<const Received> messages, std::size_t stage,
                     ByteSpan sum, int peers);

  /// Copies a message, whose checksums it checks.
  std::size_t forward(const Lane& lane, const Received& received, ByteSpan message, int peers);

  /// Of a message of several lanes that of the first.
  Received first_of(const Lane& lane, const Received& several) const;

  /// Throws WireError where a message of rows is of other splits than this rank's: before anything
  /// is decoded. On a device decoding finds out.
  void check_splits(const Lane& lane, const Received& message) const;

  /// Adds the messages of a lane, made after so many reductions, and assigns them to the slots'
  /// outputs, or absorbs them.
  void decode(const Lane& lane, std::span<const Received> messages, std::size_t stage, Take take);

  /// Writes the bare values of lanes; and takes those of one when they are summed.
  void encode_native(std::span<const Lane> lanes, std::span<const ValueSpan> values);
  void decode_native(const Lane& lane, ConstValueSpan values, Take take);

 private:
  void gather_inputs(const Lane& lane, const FramePlan& frame);
  void gather_owners(const FramePlan& frame, std::size_t stage);
  void gather_outputs(const Lane& lane, const FramePlan& frame);
  void gather_memories(const FramePlan& frame);
  void next_frames(const FramePlan& frame, std::span<const Received> messages);
  std::size_t written_bytes(const FramePlan& frame, ConstByteSpan target) const {
    return context_->on_device() ? frame.frame_bytes : frame_bytes(target);
  }
  void copy(ByteSpan to, ConstByteSpan from) const;
  void check_checksum(ConstByteSpan frame, int rank) const;
  StateWords* words_out() { return context_->on_device() ? nullptr : &words_out_; }
  RandomSource random(const Lane& lane, std::size_t stage) const;
  FrameIdentity identity(const Lane& lane) const;
  /// Of what is added after so many reductions.
  float factor(const Lane& lane, std::size_t stage) const {
    return context_->reduction == Reduction::kMean ? 1.0f / lane.shares[stage] : 1.0f;
  }
  Execution execution(const FramePlan& frame) const;
  void encode_native(const Lane& lane, ValueSpan values);
  EncodeCall encode_call(const Lane& lane, const FramePlan& frame);
  DecodeCall decode_call(const Lane& lane, const FramePlan& frame, float factor);
  /// The time from `begin` to `end` went into encoding, reducing or decoding a frame.
  void count_time(const FramePlan& frame, Traced work, Clock::time_point begin,
                  Clock::time_point end);
  void trace(const FramePlan& frame, Traced work, Clock::time_point begin, double seconds_a_value);
  void count_bytes(const FramePlan& frame, std::size_t bytes, int peers);
  void count_overflows();
  /// What a frame took from `start` on; the bytes from it to the next one.
  std::size_t count_written(const FramePlan& frame, ByteSpan target, Traced work,
                            Clock::time_point start, int peers);
  template <typename Read>
  void read_frames(std::span<const Received> messages, const Read& read);
  [[noreturn]] void throw_damaged(int rank, const WireError& error) const;

  ExchangeContext* context_ = nullptr;
  ByteSpan workspace_, kept_;
  std::uint8_t round_ = 0;
  StateWords words_out_;  ///< of each call; only its counter is used
  std::vector<ConstValueSpan> inputs_;
  std::vector<ValueSpan> outputs_;
  std::vector<SegmentMemory> memories_;
  std::vector<SegmentState> states_;
  std::vector<ConstByteSpan> frames_;
  std::vector<std::size_t> offsets_;  ///< of the next frame in each message
};

}  // namespace tersor
