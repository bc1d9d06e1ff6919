// Fills in the arguments of codec calls for a gradient.

#include "codecs/planned_codec.h"

#include <algorithm>
#include <string>

namespace tersor {
namespace {

constexpr RandomSource kRandom{.key = 0x7e4504, .step = 0};

}  // namespace

SegmentState in_place(ValueSpan residual) { return {residual, residual}; }

PlannedCodec::PlannedCodec(std::string_view spec, const PlanInput& plan_input)
    : codec_(make_codec(spec)), plan_input_(plan_input) {
  segment_ = {.count = plan_input.count,
              .parameter = plan_input.parameter,
              .rows = plan_input.rows,
              .columns = plan_input.columns};
  const unsigned threads = plan_input.threads == nullptr ? 1 : plan_input.threads->count();
  plan_ = codec_->plan({.segments = {&segment_, 1},
                        .dtype = plan_input.dtype,
                        .contributions = plan_input.contributions,
                        .memory = plan_input.memory,
                        .threads = threads});
  workspace_ = Buffer(plan_.workspace_bytes, plan_input.memory);
  round_state_ = Buffer(plan_.round_state_bytes, plan_input.memory);
}

bool PlannedCodec::allows(Exchange exchange) const {
  return std::ranges::count(plan_.rounds.back().exchanges, exchange) != 0;
}

Execution PlannedCodec::execution() const {
  return {.threads = plan_input_.threads,
          .stream = plan_input_.stream,
          .workspace = workspace_.span(),
          .round_state = round_state_.span(),
          .memory = plan_input_.memory};
}

void PlannedCodec::encode(ConstValueSpan gradient, ByteSpan frame,
                          const std::optional<SegmentState>& state, StateWords* words) const {
  codec_->encode({.segments = {&segment_, 1},
                  .gradients = {&gradient, 1},
                  .states = states(state),
                  .words = words,
                  .words_out = words,
                  .random = kRandom,
                  .identity = identity(),
                  .execution = execution()},
                 frame);
}

void PlannedCodec::decode(std::span<const ConstByteSpan> frames, ValueSpan output, DecodeMode mode,
                          float factor) const {
  codec_->decode({.segments = {&segment_, 1},
                  .frames = frames,
                  .outputs = {&output, 1},
                  .mode = mode,
                  .factor = factor,
                  .identity = identity(),
                  .execution = execution()});
}

void PlannedCodec::reduce(std::span<const ConstByteSpan> frames, ByteSpan frame,
                          const std::optional<SegmentState>& state, StateWords* words) const {
  codec_->reduce({.segments = {&segment_, 1},
                  .dtype = plan_input_.dtype,
                  .frames = frames,
                  .states = states(state),
                  .words = words,
                  .words_out = words,
                  .random = kRandom,
                  .identity = identity(),
                  .execution = execution()},
                 frame);
}

void PlannedCodec::encode_native(ConstValueSpan gradient, std::size_t round, ValueSpan values,
                                 float factor) const {
  codec_->encode_native({.segments = {&segment_, 1},
                         .gradients = {&gradient, 1},
                         .random = kRandom,
                         .identity = identity(round),
                         .execution = execution(),
                         .contributions = plan_input_.contributions},
                        factor, values);
}

void PlannedCodec::decode_native(ValueSpan values, std::size_t round, ValueSpan output) const {
  const DecodeCall back{.segments = {&segment_, 1},
                        .outputs = {&output, 1},
                        .identity = identity(round),
                        .execution = execution(),
                        .contributions = plan_input_.contributions};
  if (round + 1 == plan_.rounds.size())
    codec_->decode_native(back, values);
  else
    codec_->absorb(back, values);
}

std::size_t PlannedCodec::exchange_raw(ConstValueSpan gradient, ValueSpan output) const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < plan_.rounds.size(); ++i) {
    const Round& round = plan_.rounds[i];
    const Buffer raw(round.native_count * dtype_bytes(round.native_dtype));
    const ValueSpan values = raw.values(round.native_count, round.native_dtype);
    encode_native(gradient, i, values);
    decode_native(values, i, output);
    bytes += raw.bytes();
  }
  return bytes;
}

ConstByteSpan used_bytes(const Buffer& frame) {
  return frame.span().first(frame_bytes(frame.span()));
}

std::size_t payload_bytes(const Buffer& frame) {
  return used_bytes(frame).size() - sizeof(FrameHeader);
}

std::string with_feedback(std::string_view spec, Feedback feedback) {
  CodecSpec parts = parse_spec(spec);
  parts.feedback = feedback;
  return parts.text();
}

}  // namespace tersor
