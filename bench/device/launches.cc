// See launches.h.

#include "bench/device/launches.h"

#include <algorithm>
#include <array>
#include <utility>

#include "bench/compare.h"
#include "bench/device/operations.h"
#include "bench/useful_bytes.h"

namespace tersor::bench {
namespace {

constexpr RandomSource kRandom{.key = 0x7e4504, .step = 0};

enum class Capture : std::uint8_t { kNo, kYes };

Capture capture_of(std::string_view name) {
  return name.ends_with("graph") ? Capture::kYes : Capture::kNo;
}

/// `calls` calls as one: from a graph where that is asked for.
TimedCall in_a_row(TimedCall call, std::size_t calls, Capture capture, StreamView stream) {
  if (capture == Capture::kNo) {
    call.calls = calls;
    return call;
  }
  const auto graph = std::make_shared<CallGraph>(stream, call.queue, calls);
  return {call.name, [graph] { graph->queue(); }, 0, calls};
}

/// One codec for a list of equal segments, in the memory of `plan_for`.
class ListCodec {
 public:
  ListCodec(std::string_view spec, const PlanFor& plan_for)
      : codec_(make_codec(spec)), plan_for_(plan_for), segments_(kTensors) {
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      segments_[i].count = plan_for.count / kTensors;
      segments_[i].parameter = static_cast<std::uint32_t>(i);
    }
    const unsigned threads = plan_for.threads == nullptr ? 1 : plan_for.threads->count();
    plan_ = codec_->plan({.segments = segments_,
                          .dtype = plan_for.dtype,
                          .memory = plan_for.memory,
                          .threads = threads});
    workspace_ = Buffer(plan_.workspace_bytes, plan_for.memory);
  }

  const Plan& plan() const { return plan_; }

  void encode(std::span<const ConstValueSpan> gradients, ByteSpan frame) const {
    codec_->encode({.segments = segments_,
                    .gradients = gradients,
                    .random = kRandom,
                    .identity = {.signature = 0, .checksum = plan_for_.checksum},
                    .execution = {.threads = plan_for_.threads,
                                  .stream = plan_for_.stream,
                                  .workspace = workspace_.span(),
                                  .memory = plan_for_.memory}},
                   frame);
  }

 private:
  std::shared_ptr<const Codec> codec_;
  PlanFor plan_for_;
  std::vector<Segment> segments_;
  Plan plan_;
  Buffer workspace_;
};

std::vector<ConstValueSpan> cut(ConstValueSpan gradient) {
  const std::size_t count = gradient.count() / kTensors;
  std::vector<ConstValueSpan> tensors;
  for (std::size_t i = 0; i < kTensors; ++i) tensors.push_back(gradient.subspan(i * count, count));
  return tensors;
}

class MultiTensor : public DeviceOperation {
 public:
  MultiTensor(const DeviceInput& input, Capture capture)
      : DeviceOperation(input),
        capture_(capture),
        list_on_host_(input.host.codec, input.plan_on_host()),
        list_(input.host.codec, input.plan_on_device()),
        flat_(input.host.codec, input.plan_on_device()) {
    payload_bytes_ = list_.plan().frame_bytes - sizeof(FrameHeader);
    workspace_bytes_ = list_.plan().workspace_bytes;
    useful_bytes_ = encode_bytes(input.host.step(0).bytes(), payload_bytes_);
    gradients_ = std::make_unique<DeviceGradients>(input, sets());
    frames_ = std::make_unique<RotatedBuffer>(
        sets(), std::max(list_.plan().frame_bytes, flat_.plan().frame_bytes));
    for (std::size_t set = 0; set < sets(); ++set) tensors_.push_back(cut(gradients_->at(set)));
  }

  double check() override {
    const ConstValueSpan gradient = input_.host.step(0);
    const Buffer frame(list_on_host_.plan().frame_bytes);
    list_on_host_.encode(cut(gradient), frame.span());
    queue();
    require_same(used_bytes(frame), frames_->at(0), input_.stream, "encode of a list: the frame");
    return 0;
  }

  void queue() override {
    list_.encode(tensors_[call_ % tensors_.size()],
                 frames_->at(call_).first(list_.plan().frame_bytes));
    ++call_;
  }

  TimedCall timed() override {
    return in_turn({"list", [this] { queue(); }});
  }

  std::vector<TimedCall> references() override {
    std::vector<TimedCall> calls = {in_turn({"flat", [this] { queue_flat(); }})};
    for (TimedCall& baseline : memory_references()) calls.push_back(std::move(baseline));
    return calls;
  }

 private:
  TimedCall in_turn(TimedCall call) const {
    if (capture_ == Capture::kNo) return call;
    return in_a_row(std::move(call), 2 * sets(), Capture::kYes, input_.stream);
  }

  void queue_flat() {
    flat_.encode(gradients_->at(call_), frames_->at(call_).first(flat_.plan().frame_bytes));
    ++call_;
  }

  Capture capture_;
  ListCodec list_on_host_, list_;
  PlannedCodec flat_;
  std::unique_ptr<DeviceGradients> gradients_;
  std::unique_ptr<RotatedBuffer> frames_;
  std::vector<std::vector<ConstValueSpan>> tensors_;
  std::size_t call_ = 0;
};

/// Encode, as it is timed call after call elsewhere, in a row of short ones.
class SmallEncode : public DeviceOperation {
 public:
  SmallEncode(const DeviceInput& input, Capture capture)
      : DeviceOperation(input), capture_(capture), encode_(make_codec_operation(kEncode, input)) {
    payload_bytes_ = encode_->payload_bytes();
    workspace_bytes_ = encode_->workspace_bytes();
    useful_bytes_ = encode_->useful_bytes();
  }

  double check() override { return encode_->check(); }
  void queue() override { encode_->queue(); }
  TimedCall timed() override {
    return in_row({"calls", [this] { queue(); }});
  }
  std::vector<TimedCall> references() override { return {in_row(empty_kernel(input_.stream))}; }

 private:
  TimedCall in_row(TimedCall call) const {
    return in_a_row(std::move(call), kQueuedCalls, capture_, input_.stream);
  }

  Capture capture_;
  std::unique_ptr<DeviceOperation> encode_;
};

constexpr std::array kLaunchNames = {kMultiTensor, kMultiTensorGraph, kSmall, kSmallGraph};

bool is_multi_tensor(std::string_view name) { return name.starts_with(kMultiTensor); }

}  // namespace

bool is_launch_operation(std::string_view name) {
  return std::ranges::find(kLaunchNames, name) != kLaunchNames.end();
}

std::size_t launch_operation_count(std::string_view name, Dtype dtype, std::size_t tensor_count) {
  return is_multi_tensor(name) ? kTensors * tensor_count : kSmallBytes / dtype_bytes(dtype);
}

std::unique_ptr<DeviceOperation> make_launch_operation(std::string_view name,
                                                       const DeviceInput& input) {
  if (is_multi_tensor(name)) return std::make_unique<MultiTensor>(input, capture_of(name));
  return std::make_unique<SmallEncode>(input, capture_of(name));
}

}  // namespace tersor::bench
