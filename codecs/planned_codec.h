// A codec, planned for one gradient on a host or a device, with the scratch memory that the plan
// asks for: of each call no more than the call itself is left.
#pragma once

#include <tersor/buffer.h>
#include <tersor/codec.h>
#include <tersor/threads.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace tersor {

/// What a codec is planned for. Its calls take spans of this memory.
struct PlanFor {
  std::size_t count = 0;
  Dtype dtype = Dtype::kF32;
  Checksum checksum = Checksum::kOn;
  Threads* threads = nullptr;
  Memory memory = Memory::kHost;
  StreamView stream = {};         ///< where calls on a device are queued
  std::size_t contributions = 1;  ///< frames that a call may bring
  std::uint32_t parameter = 0;
  std::size_t rows = 0, columns = 0;  ///< of a matrix
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
  bool has_frames() const { return allows(Exchange::kGather); }
  /// Whether frames of several ranks may be reduced to one.
  bool reduces() const { return allows(Exchange::kTwoShot); }
  bool allows(Exchange exchange) const;  ///< in its last round
  /// A buffer of that memory that holds a frame.
  Buffer frame() const { return Buffer(plan_.frame_bytes, plan_for_.memory); }

  /// With feedback where there is a state; advances the step in `words`, which lie where the
  /// gradient does.
  void encode(ConstValueSpan gradient, ByteSpan frame,
              const std::optional<SegmentState>& state = {}, StateWords* words = nullptr) const;
  void decode(std::span<const ConstByteSpan> frames, ValueSpan output,
              DecodeMode mode = DecodeMode::kAssign, float factor = 1.0f) const;
  void decode(ConstByteSpan frame, ValueSpan output, DecodeMode mode = DecodeMode::kAssign,
              float factor = 1.0f) const {
    decode(std::span(&frame, 1), output, mode, factor);
  }
  void reduce(std::span<const ConstByteSpan> frames, ByteSpan frame,
              const std::optional<SegmentState>& state = {}, StateWords* words = nullptr) const;
  /// One round of bare values, there and back.
  void encode_native(ConstValueSpan gradient, std::size_t round, ValueSpan values) const;
  void decode_native(ValueSpan values, std::size_t round, ValueSpan output) const;
  /// Of a codec without frames: the rounds of bare values, to which no other rank adds anything.
  /// Returns the bytes of all rounds.
  std::size_t exchange_bare(ConstValueSpan gradient, ValueSpan output) const;

 private:
  Execution execution() const;
  FrameIdentity identity(std::size_t round = 0) const {
    return {.checksum = plan_for_.checksum, .round = static_cast<std::uint8_t>(round)};
  }

  std::span<const SegmentState> states(const std::optional<SegmentState>& state) const {
    return {state ? &*state : nullptr, state ? 1u : 0u};
  }

  std::shared_ptr<const Codec> codec_;
  PlanFor plan_for_;
  Segment segment_;
  Plan plan_;
  Buffer workspace_, kept_;
};

/// A state whose residual is written where it is read.
SegmentState in_place(ValueSpan residual);

/// The bytes of a frame on the host that count: header and true payload.
ConstByteSpan used_bytes(const Buffer& frame);
/// True bytes of its payload.
std::size_t payload_bytes(const Buffer& frame);

/// The spec with or without "+ef".
std::string with_feedback(std::string_view spec, Feedback feedback);

}  // namespace tersor
