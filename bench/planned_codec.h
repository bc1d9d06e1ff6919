// A codec, planned for one gradient on a host or a device, with the scratch memory that the plan
// asks for: what is timed is one call without any allocation.
#pragma once

#include <tersor/buffer.h>
#include <tersor/codec.h>
#include <tersor/threads.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

namespace tersor::bench {

/// What a codec is planned for. Its calls take spans of this memory.
struct PlanFor {
  std::size_t count = 0;
  Dtype dtype = Dtype::kF32;
  Checksum checksum = Checksum::kOn;
  Threads* threads = nullptr;
  Memory memory = Memory::kHost;
  StreamView stream = {};         ///< where calls on a device are queued
  std::size_t contributions = 1;  ///< frames that a call may bring
};

class PlannedCodec {
 public:
  /// Throws InvalidArgument as `make_codec` and `Codec::plan` do.
  PlannedCodec(std::string_view spec, const PlanFor& plan_for);

  std::size_t count() const { return plan_for_.count; }
  Dtype dtype() const { return plan_for_.dtype; }
  const Codec& codec() const { return *codec_; }
  const Plan& plan() const { return plan_; }
  /// Whether gradients travel as frames; else as bare values alone.
  bool has_frames() const;
  /// Whether frames of several ranks may be reduced to one.
  bool reduces() const;
  /// A buffer of that memory that holds a frame.
  Buffer frame() const { return Buffer(plan_.frame_bytes, plan_for_.memory); }

  void encode(ConstValueSpan gradient, ByteSpan frame) const;
  /// With feedback; advances the step in `words`, which lie where the gradient does.
  void encode(ConstValueSpan gradient, const SegmentState& state, StateWords* words,
              ByteSpan frame) const;
  void decode(ConstByteSpan frame, ValueSpan output, DecodeMode mode, float factor = 1.0f) const;
  void reduce(std::span<const ConstByteSpan> frames, const SegmentState& state, StateWords* words,
              ByteSpan frame) const;
  /// Of a codec without frames: the rounds of bare values, to which no other rank adds anything.
  /// Returns the bytes of all rounds.
  std::size_t exchange_bare(ConstValueSpan gradient, ValueSpan output) const;

 private:
  Execution execution() const;
  FrameIdentity identity() const { return {.signature = 0, .checksum = plan_for_.checksum}; }

  std::shared_ptr<const Codec> codec_;
  PlanFor plan_for_;
  Segment segment_;
  Plan plan_;
  Buffer workspace_, kept_;
};

/// A state whose residual is written where it is read, or elsewhere.
SegmentState in_place(ValueSpan residual);
SegmentState residual_from(ConstValueSpan before, ValueSpan after);

/// The bytes of a frame on the host that count: header and true payload.
ConstByteSpan used_bytes(const Buffer& frame);
/// True bytes of its payload.
std::size_t payload_bytes(const Buffer& frame);

/// The spec with or without "+ef".
std::string with_feedback(std::string_view spec, Feedback feedback);

}  // namespace tersor::bench
