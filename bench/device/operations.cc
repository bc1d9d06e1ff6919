// Encode, decode and reduce of one codec on a device.

#include "bench/device/operations.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "bench/compare.h"
#include "bench/device/feedback.h"
#include "bench/rotation.h"
#include "bench/useful_bytes.h"

namespace tersor::bench {
namespace {

constexpr std::size_t kSector = 32;  // bytes: the least that device memory moves

class DeviceEncode : public DeviceOperation {
 public:
  explicit DeviceEncode(const DeviceInput& input)
      : DeviceOperation(input),
        on_host_(input.host.codec, input.plan_on_host()),
        on_device_(input.host.codec, input.plan_on_device()) {
    payload_bytes_ = on_device_.plan().frame_bytes - sizeof(FrameHeader);
    workspace_bytes_ = on_device_.plan().workspace_bytes;
    useful_bytes_ = encode_bytes(input.host.step(0).bytes(), payload_bytes_);
    gradients_ = std::make_unique<DeviceGradients>(input, sets());
    frames_ = std::make_unique<RotatedBuffer>(sets(), on_device_.plan().frame_bytes);
  }

  double check() override {
    const ConstValueSpan gradient = input_.host.step(0);
    const Buffer frame = on_host_.frame(), decoded(gradient.bytes());
    on_host_.encode(gradient, frame.span());
    queue();
    require_same(used_bytes(frame), frames_->at(0), input_.stream, "encode: the frame");
    const ValueSpan values = decoded.values(gradient.count(), gradient.dtype());
    on_host_.decode(used_bytes(frame), values, DecodeMode::kAssign);
    return relative_error(gradient, values);
  }

  void queue() override {
    on_device_.encode(gradients_->at(call_), frames_->at(call_));
    ++call_;
  }

  std::vector<TimedCall> references() override { return memory_references(); }

 private:
  PlannedCodec on_host_, on_device_;
  std::unique_ptr<DeviceGradients> gradients_;
  std::unique_ptr<RotatedBuffer> frames_;
  std::size_t call_ = 0;
};

class DeviceDecode : public DeviceOperation {
 public:
  DeviceDecode(const DeviceInput& input, DecodeMode mode)
      : DeviceOperation(input),
        on_host_(input.host.codec, input.plan_on_host()),
        on_device_(input.host.codec, input.plan_on_device()),
        mode_(mode),
        frame_(on_host_.frame()),
        decoded_(input.host.step(0).bytes()) {
    on_host_.encode(gradient(), frame_.span());
    on_host_.decode(used_bytes(frame_), decoded(), DecodeMode::kAssign);
    payload_bytes_ = tersor::payload_bytes(frame_);
    workspace_bytes_ = on_device_.plan().workspace_bytes;
    useful_bytes_ = mode == DecodeMode::kAssign
                        ? decode_bytes(decoded_.bytes(), payload_bytes_)
                        : decode_add_bytes(touched_bytes(decoded_.span(), kSector), payload_bytes_);
    frames_ = std::make_unique<RotatedBuffer>(sets(), used_bytes(frame_).size());
    frames_->fill(used_bytes(frame_), input.stream);
    outputs_ = std::make_unique<RotatedBuffer>(sets(), decoded_.bytes());
    outputs_->fill({gradient().pointer(), gradient().bytes()}, input.stream);
  }

  double check() override {
    const double error = relative_error(gradient(), decoded());
    const Buffer output(decoded_.bytes());
    std::memcpy(output.pointer(), gradient().pointer(), output.bytes());
    on_host_.decode(used_bytes(frame_), output.values(gradient().count(), gradient().dtype()),
                    mode_);
    queue();
    require_same(output.span(), outputs_->at(0), input_.stream, "decode: the values");
    return error;
  }

  /// What was added comes off again when the set's turn comes next.
  void queue() override {
    const float factor = call_ / frames_->sets() % 2 == 0 ? 1.0f : -1.0f;
    on_device_.decode(frames_->at(call_), outputs_->values(call_, gradient().dtype()), mode_,
                      mode_ == DecodeMode::kAdd ? factor : 1.0f);
    ++call_;
  }

  std::vector<TimedCall> references() override {
    return memory_references(mode_ == DecodeMode::kAssign ? WithMemset::kYes : WithMemset::kNo);
  }

 private:
  ConstValueSpan gradient() const { return input_.host.step(0); }
  ValueSpan decoded() const { return decoded_.values(gradient().count(), gradient().dtype()); }

  PlannedCodec on_host_, on_device_;
  DecodeMode mode_;
  Buffer frame_, decoded_;
  std::unique_ptr<RotatedBuffer> frames_, outputs_;
  std::size_t call_ = 0;
};

/// The frames of eight ranks, each of which has the same values in another order.
class DeviceReduce : public DeviceOperation {
 public:
  explicit DeviceReduce(const DeviceInput& input)
      : DeviceOperation(input),
        encoder_(input.host.codec, input.plan_on_host()),
        on_host_(with_feedback(input.host.codec, Feedback::kResidual),
                 input.plan_on_host(kDeviceReducedFrames)),
        on_device_(with_feedback(input.host.codec, Feedback::kResidual),
                   input.plan_on_device(kDeviceReducedFrames)) {
    payload_bytes_ = on_device_.plan().frame_bytes - sizeof(FrameHeader);
    workspace_bytes_ = on_device_.plan().workspace_bytes;
    useful_bytes_ =
        reduce_bytes(kDeviceReducedFrames, input.host.count * sizeof(float), payload_bytes_);
    state_ = std::make_unique<DeviceState>(input, sets());
    reduced_ = std::make_unique<RotatedBuffer>(sets(), on_device_.plan().frame_bytes);
    for (std::size_t rank = 0; rank < kDeviceReducedFrames; ++rank) encode_rank(rank);
  }

  double check() override {
    HostState state = state_->on_host();
    const Buffer reduced = on_host_.frame();
    std::array<ConstByteSpan, kDeviceReducedFrames> frames;
    for (std::size_t rank = 0; rank < frames.size(); ++rank)
      frames[rank] = used_bytes(host_frames_[rank]);
    on_host_.reduce(frames, reduced.span(), state.in_place(), &state.words);
    queue();
    require_same(used_bytes(reduced), reduced_->at(0), input_.stream, "reduce: the frame");
    state_->require_same_as(state, "reduce: the owner's residual");
    return error_of(reduced);
  }

  void queue() override {
    std::array<ConstByteSpan, kDeviceReducedFrames> frames;
    for (std::size_t rank = 0; rank < frames.size(); ++rank) frames[rank] = frames_[rank].at(call_);
    on_device_.reduce(frames, reduced_->at(call_), state_->in_place(call_), state_->words());
    ++call_;
  }

  std::vector<TimedCall> references() override { return memory_references(); }

 private:
  ConstValueSpan gradient() const { return input_.host.step(0); }

  /// The gradient, rotated by a share of its count.
  void encode_rank(std::size_t rank) {
    const Buffer rotated(gradient().bytes());
    const std::size_t cut = gradient().count() * rank / kDeviceReducedFrames;
    const ConstValueSpan tail = gradient().subspan(cut, gradient().count() - cut);
    std::memcpy(rotated.pointer(), tail.pointer(), tail.bytes());
    std::memcpy(rotated.pointer() + tail.bytes(), gradient().pointer(),
                rotated.bytes() - tail.bytes());
    host_frames_.push_back(encoder_.frame());
    encoder_.encode(rotated.values(gradient().count(), gradient().dtype()),
                    host_frames_.back().span());
    frames_.emplace_back(sets(), used_bytes(host_frames_.back()).size());
    frames_.back().fill(used_bytes(host_frames_.back()), input_.stream);
  }

  /// Against the sum of what the frames hold and of the residual before.
  double error_of(const Buffer& reduced) const {
    std::vector<double> sum(gradient().count());
    const Buffer decoded(gradient().bytes());
    const ValueSpan values = decoded.values(gradient().count(), gradient().dtype());
    for (const Buffer& frame : host_frames_) {
      encoder_.decode(used_bytes(frame), values, DecodeMode::kAssign);
      add_values(1.0, values, sum);
    }
    add_values(1.0, state_->initial(), sum);
    encoder_.decode(used_bytes(reduced), values, DecodeMode::kAssign);
    return relative_error(sum, values);
  }

  PlannedCodec encoder_, on_host_, on_device_;
  std::vector<Buffer> host_frames_;
  std::vector<RotatedBuffer> frames_;
  std::unique_ptr<DeviceState> state_;
  std::unique_ptr<RotatedBuffer> reduced_;
  std::size_t call_ = 0;
};

}  // namespace

std::unique_ptr<DeviceOperation> make_codec_operation(std::string_view name,
                                                      const DeviceInput& input) {
  if (name == kEncode) return std::make_unique<DeviceEncode>(input);
  if (name == kDecode) return std::make_unique<DeviceDecode>(input, DecodeMode::kAssign);
  if (name == kDecodeAdd) return std::make_unique<DeviceDecode>(input, DecodeMode::kAdd);
  if (name == kReduce) return std::make_unique<DeviceReduce>(input);
  return make_feedback_operation(name, input);
}

}  // namespace tersor::bench
