// A codec, planned for one gradient, with the scratch memory that the plan asks for: what is timed
// is one call without any allocation.
#pragma once

#include <tersor/buffer.h>
#include <tersor/codec.h>
#include <tersor/threads.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

namespace tersor::bench {

/// What a codec is planned for.
struct PlanFor {
  std::size_t count = 0;
  Dtype dtype = Dtype::kF32;
  Checksum checksum = Checksum::kOn;
  Threads* threads = nullptr;
};

class PlannedCodec {
 public:
  /// Throws InvalidArgument as `make_codec` and `Codec::plan` do.
  PlannedCodec(std::string_view spec, const PlanFor& plan_for);

  std::size_t count() const { return plan_for_.count; }
  Dtype dtype() const { return plan_for_.dtype; }
  const Codec& codec() const { return *codec_; }
  const Plan& plan() const { return plan_; }
  /// Whether frames of several ranks may be reduced to one.
  bool reduces() const;
  /// A buffer that holds a frame.
  Buffer frame() const { return Buffer(plan_.frame_bytes); }

  void encode(ConstValueSpan gradient, ByteSpan frame) const;
  /// With feedback, in place; advances the step in `words`.
  void encode(ConstValueSpan gradient, ValueSpan residual, StateWords& words, ByteSpan frame) const;
  void decode(ConstByteSpan frame, ValueSpan output, DecodeMode mode, float factor = 1.0f) const;
  void reduce(std::span<const ConstByteSpan> frames, ValueSpan residual, StateWords& words,
              ByteSpan frame) const;

 private:
  Execution execution() const;
  FrameIdentity identity() const { return {.signature = 0, .checksum = plan_for_.checksum}; }

  std::shared_ptr<const Codec> codec_;
  PlanFor plan_for_;
  Segment segment_;
  Plan plan_;
  Buffer workspace_, kept_;
};

/// The bytes of a frame that count: header and true payload.
ConstByteSpan used_bytes(const Buffer& frame);
/// True bytes of a frame's payload.
std::size_t payload_bytes(const Buffer& frame);

/// The spec with or without "+ef".
std::string with_feedback(std::string_view spec, Feedback feedback);

}  // namespace tersor::bench
