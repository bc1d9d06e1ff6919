// A codec planned for a gradient on a host or a device, with the scratch memory of the plan. A call
// then needs few arguments.
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

/// The input of a plan. All spans of later calls lie in `memory`.
struct PlanInput {
  std::size_t count = 0;
  Dtype dtype = Dtype::kF32;
  Checksum checksum = Checksum::kOn;
  Threads* threads = nullptr;
  Memory memory = Memory::kHost;
  StreamView stream = {};         ///< stream of calls on a device
  std::size_t contributions = 1;  ///< maximum number of frames per call
  std::uint32_t parameter = 0;
  std::size_t rows = 0, columns = 0;  ///< shape of a matrix
};

/// A codec, a plan and the plan's scratch memory. Not thread-safe.
class PlannedCodec {
 public:
  /// Throws InvalidArgumentError as `make_codec` and `Codec::plan` do.
  PlannedCodec(std::string_view spec, const PlanInput& plan_input);

  std::size_t count() const { return plan_input_.count; }
  Dtype dtype() const { return plan_input_.dtype; }
  const Codec& codec() const { return *codec_; }
  const Plan& plan() const { return plan_; }
  /// True if gradients are sent as frames; otherwise only as raw values.
  bool has_frames() const { return allows(Exchange::kGather); }
  /// True if frames of several ranks can be reduced.
  bool reduces() const { return allows(Exchange::kTwoShot); }
  bool allows(Exchange exchange) const;  ///< True if the last round allows this exchange.
  /// Returns a buffer for a frame in the planned memory.
  Buffer frame() const { return Buffer(plan_.frame_bytes, plan_input_.memory); }

  /// Uses feedback if there is a state. Advances the step in `words`, which must lie in the
  /// gradient's memory.
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
  /// Encodes or decodes one round of raw values.
  void encode_native(ConstValueSpan gradient, std::size_t round, ValueSpan values,
                     float factor = 1.0f) const;
  void decode_native(ValueSpan values, std::size_t round, ValueSpan output) const;
  /// Codecs without frames: runs all rounds as the only rank. Returns the bytes of all rounds.
  std::size_t exchange_raw(ConstValueSpan gradient, ValueSpan output) const;

 private:
  Execution execution() const;
  FrameIdentity identity(std::size_t round = 0) const {
    return {.checksum = plan_input_.checksum, .round = static_cast<std::uint8_t>(round)};
  }

  std::span<const SegmentState> states(const std::optional<SegmentState>& state) const {
    return {state ? &*state : nullptr, state ? 1u : 0u};
  }

  std::shared_ptr<const Codec> codec_;
  PlanInput plan_input_;
  Segment segment_;
  Plan plan_;
  Buffer workspace_, round_state_;
};

/// Returns a state whose residual is updated in place.
SegmentState in_place(ValueSpan residual);

/// Returns the used bytes of a host frame: header and payload.
ConstByteSpan used_bytes(const Buffer& frame);
/// Returns the used bytes of a frame's payload.
std::size_t payload_bytes(const Buffer& frame);

/// Returns the spec with or without "+ef".
std::string with_feedback(std::string_view spec, Feedback feedback);

}  // namespace tersor
