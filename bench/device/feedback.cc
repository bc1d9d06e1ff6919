// See feedback.h.

#include "bench/device/feedback.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <cstring>
#include <vector>

#include "bench/compare.h"
#include "bench/topk_operations.h"
#include "bench/useful_bytes.h"

namespace tersor::bench {
namespace {

constexpr std::uint64_t kResidualSeed = 2;

class DeviceFeedback : public DeviceOperation {
 public:
  explicit DeviceFeedback(const DeviceInput& input)
      : DeviceOperation(input),
        codec_(with_feedback(input.host.codec, Feedback::kResidual)),
        on_host_(codec_, input.plan_on_host()),
        on_device_(codec_, input.plan_on_device()) {
    payload_bytes_ = on_device_.plan().frame_bytes - sizeof(FrameHeader);
    workspace_bytes_ = on_device_.plan().workspace_bytes;
    useful_bytes_ = feedback_bytes(input.host.step(0).bytes(), input.host.count * sizeof(float),
                                   payload_bytes_);
    gradients_ = std::make_unique<DeviceGradients>(input, sets());
    state_ = std::make_unique<DeviceState>(input, sets());
    frames_ = std::make_unique<RotatedBuffer>(sets(), on_device_.plan().frame_bytes);
  }

  double check() override {
    const ConstValueSpan gradient = input_.host.step(0);
    HostState state = state_->on_host();
    const Buffer frame = on_host_.frame(), decoded(gradient.bytes());
    on_host_.encode(gradient, frame.span(), state.in_place(), &state.words);
    queue();
    require_same(used_bytes(frame), frames_->at(0), input_.stream, "encode: the frame");
    require_same_residual(state);
    const ValueSpan values = decoded.values(gradient.count(), gradient.dtype());
    on_host_.decode(used_bytes(frame), values, DecodeMode::kAssign);
    return feedback_error(gradient, state_->initial(), values);
  }

  void queue() override {
    on_device_.encode(gradients_->at(call_), frames_->at(call_), state_of(call_), state_->words());
    ++call_;
  }

  std::vector<TimedCall> references() override { return memory_references(); }

 protected:
  virtual SegmentState state_of(std::size_t call) const { return state_->in_place(call); }
  virtual void require_same_residual(const HostState& state) const {
    state_->require_same_as(state, "encode: the residual");
  }

  std::string codec_;
  PlannedCodec on_host_, on_device_;
  std::unique_ptr<DeviceGradients> gradients_;
  std::unique_ptr<DeviceState> state_;
  std::unique_ptr<RotatedBuffer> frames_;
  std::size_t call_ = 0;
};

/// Holds the source and the values that its base is made from.
struct NarrowValues {
  explicit NarrowValues(const OperationInput& like)
      : source("narrow"),
        buffer(sample_buffer(source, like.gradient.count(), like.gradient.dtype(), 1)) {}

  DeviceInput in_place_of(DeviceInput input) const {
    input.source = &source;
    input.host.gradient = buffer.values(input.host.gradient.count(), input.host.gradient.dtype());
    return input;
  }

  SampleSource source;
  Buffer buffer;
};

/// Residuals are read from one place and written to another, so that each step is as hard as the
/// first: in place, what is sent would spread the values over many magnitudes.
class DeviceFarMiss : private NarrowValues, public DeviceFeedback {
 public:
  explicit DeviceFarMiss(const DeviceInput& input)
      : NarrowValues(input.host),
        DeviceFeedback(in_place_of(input)),
        written_(sets(), input.host.count * sizeof(float)) {}

 private:
  SegmentState state_of(std::size_t call) const override {
    return {state_->residual(call), written_.values(call, Dtype::kF32)};
  }
  void require_same_residual(const HostState& state) const override {
    require_same(state.residual.span(), written_.at(0), input_.stream, "encode: the residual");
  }

  RotatedBuffer written_;
};

}  // namespace

ValueSpan HostState::values() const {
  return residual.values(residual.bytes() / sizeof(float), Dtype::kF32);
}

SegmentState HostState::in_place() const { return tersor::in_place(values()); }

DeviceState::DeviceState(const DeviceInput& input, std::size_t sets)
    : count_(input.host.count),
      stream_(input.stream),
      initial_(sample_buffer(*input.source, count_, Dtype::kF32, kResidualSeed)),
      residuals_(sets, initial_.bytes()),
      words_(sizeof(StateWords), Memory::kDevice) {
  residuals_.fill(initial_.span(), stream_);
  const StateWords words;
  copy_bytes(std::as_bytes(std::span(&words, 1)), words_.span(), stream_);
}

HostState DeviceState::on_host() const {
  HostState state{Buffer(initial_.bytes()), {}};
  std::memcpy(state.residual.pointer(), initial_.pointer(), initial_.bytes());
  return state;
}

SegmentState DeviceState::in_place(std::size_t call) const {
  return tersor::in_place(residual(call));
}

void DeviceState::require_same_as(const HostState& state, std::string_view what) const {
  require_same(state.residual.span(), residuals_.at(0), stream_, what);
}

double feedback_error(ConstValueSpan gradient, ConstValueSpan residual, ConstValueSpan decoded) {
  std::vector<double> sent(gradient.count());
  add_values(1.0, gradient, sent);
  add_values(1.0, residual, sent);
  return relative_error(sent, decoded);
}

double host_feedback_error(const DeviceInput& input, ConstValueSpan residual) {
  const PlannedCodec codec(with_feedback(input.host.codec, Feedback::kResidual),
                           input.plan_on_host());
  const ConstValueSpan gradient = input.host.step(0);
  HostState state{Buffer(residual.bytes()), {}};
  std::memcpy(state.residual.pointer(), residual.pointer(), residual.bytes());
  const Buffer frame = codec.frame(), decoded(gradient.bytes());
  codec.encode(gradient, frame.span(), state.in_place(), &state.words);
  const ValueSpan values = decoded.values(gradient.count(), gradient.dtype());
  codec.decode(used_bytes(frame), values, DecodeMode::kAssign);
  return feedback_error(gradient, residual, values);
}

std::unique_ptr<DeviceOperation> make_feedback_operation(std::string_view name,
                                                         const DeviceInput& input) {
  if (name == kFeedback) return std::make_unique<DeviceFeedback>(input);
  if (name == kFeedbackFarMiss) return std::make_unique<DeviceFarMiss>(input);
  throw InvalidArgument(fmt::format("no operation \"{}\" on a device", name));
}

}  // namespace tersor::bench
