// The cost of launches.

#include <algorithm>
#include <utility>

#include "bench/common/gpu/gpu.h"
#include "bench/micro/codec_operations.h"
#include "bench/micro/gpu/gpu_machine.h"
#include "bench/micro/gpu/kernels.h"
#include "bench/micro/useful_bytes.h"

namespace tersor::bench {
namespace {

constexpr std::size_t kTensors = 500;
constexpr std::size_t kSmallBytes = std::size_t{1} << 20;
constexpr std::size_t kQueuedCalls = 200;
constexpr RandomSource kRandom{.key = 0x7e4504, .step = 0};

enum class Capture : std::uint8_t { kNo, kYes };

/// Groups `calls` calls, as a graph if requested.
TimedCall repeat_call(TimedCall call, std::size_t calls, Capture capture, StreamView stream) {
  if (capture == Capture::kNo) {
    call.calls = calls;
    return call;
  }
  const auto graph = std::make_shared<CallGraph>(stream, call.run, calls);
  return {call.name, [graph] { graph->queue(); }, 0, calls};
}

/// A codec for a list of equal segments, with the memory and stream of `plan_input`.
class ListCodec {
 public:
  ListCodec(std::string_view spec, const PlanInput& plan_input)
      : codec_(make_codec(spec)), plan_input_(plan_input), segments_(kTensors) {
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      segments_[i].count = plan_input.count / kTensors;
      segments_[i].parameter = static_cast<std::uint32_t>(i);
    }
    const unsigned threads = plan_input.threads == nullptr ? 1 : plan_input.threads->count();
    plan_ = codec_->plan({.segments = segments_,
                          .dtype = plan_input.dtype,
                          .memory = plan_input.memory,
                          .threads = threads});
    workspace_ = Buffer(plan_.workspace_bytes, plan_input.memory);
  }

  const Plan& plan() const { return plan_; }

  void encode(std::span<const ConstValueSpan> gradients, ByteSpan frame) const {
    codec_->encode({.segments = segments_,
                    .gradients = gradients,
                    .random = kRandom,
                    .identity = {.signature = 0, .checksum = plan_input_.checksum},
                    .execution = {.threads = plan_input_.threads,
                                  .stream = plan_input_.stream,
                                  .workspace = workspace_.span(),
                                  .memory = plan_input_.memory}},
                   frame);
  }

 private:
  std::shared_ptr<const Codec> codec_;
  PlanInput plan_input_;
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

/// Encode of kTensors gradients in a single call. The reference is a flat gradient with as many
/// values.
class MultiTensor : public CodecOperation {
 public:
  MultiTensor(const OperationInput& input, Capture capture)
      : CodecOperation(input),
        capture_(capture),
        list_on_host_(input.codec, input.plan_on_host()),
        list_(input.codec, input.plan_on_machine()),
        flat_(input.codec, input.plan_on_machine()),
        sets_(sets_for(work())),
        gradients_(input, sets_, Steps::kAll),
        frames_(rotated(sets_, std::max(list_.plan().frame_bytes, flat_.plan().frame_bytes))) {
    workspace_bytes_ = list_.plan().workspace_bytes;
    for (std::size_t set = 0; set < sets_; ++set) tensors_.push_back(cut(gradients_.at(set)));
  }

  double check() override {
    const Buffer frame(list_on_host_.plan().frame_bytes);
    list_on_host_.encode(cut(gradient()), frame.span());
    run();
    require_same(used_bytes(frame), on_host(frames_), "encode of a list: the frame");
    return 0;
  }

  void call(std::size_t call) override {
    list_.encode(tensors_[rotated_index(call, sets_)],
                 frames_.at(call).first(list_.plan().frame_bytes));
  }

  TimedCall timed() override {
    return alternately({"list", [this] { run(); }});
  }

  std::vector<TimedCall> references() override {
    std::vector<TimedCall> calls = CodecOperation::references();
    calls.insert(calls.begin(), alternately({"flat", [this] { run_flat(); }}));
    return calls;
  }

 private:
  MemoryWork work() {
    payload_bytes_ = list_.plan().frame_bytes - sizeof(FrameHeader);
    return {.access = Access::kRead, .bytes = encode_bytes(gradient().bytes(), payload_bytes_)};
  }

  TimedCall alternately(TimedCall call) const {
    if (capture_ == Capture::kNo) return call;
    return repeat_call(std::move(call), 2 * sets_, Capture::kYes, input_.machine->traits().stream);
  }

  void run_flat() {
    const std::size_t call = flat_calls_++;
    flat_.encode(gradients_.at(call), frames_.at(call).first(flat_.plan().frame_bytes));
  }

  Capture capture_;
  ListCodec list_on_host_, list_;
  PlannedCodec flat_;
  std::size_t sets_;
  Gradients gradients_;
  RotatedBuffer frames_;
  std::vector<std::vector<ConstValueSpan>> tensors_;
  std::size_t flat_calls_ = 0;
};

/// Encode of 1 MiB, kQueuedCalls times in a row. The reference is as many empty kernels.
class SmallEncode : public CodecOperation {
 public:
  SmallEncode(const OperationInput& input, Capture capture)
      : CodecOperation(input), capture_(capture), encode_(make_encode(input)) {
    payload_bytes_ = encode_->payload_bytes();
    workspace_bytes_ = encode_->workspace_bytes();
    work_.bytes = encode_->useful_bytes();
  }

  double check() override { return encode_->check(); }
  void call(std::size_t) override { encode_->run(); }
  TimedCall timed() override {
    return repeated({"calls", [this] { run(); }});
  }
  std::vector<TimedCall> references() override {
    return {repeated({"empty kernel", [queue = stream_of(stream())] { queue_empty(queue); }})};
  }

 private:
  StreamView stream() const { return input_.machine->traits().stream; }
  TimedCall repeated(TimedCall call) const {
    return repeat_call(std::move(call), kQueuedCalls, capture_, stream());
  }

  Capture capture_;
  std::unique_ptr<CodecOperation> encode_;
};

template <typename Operation, Capture kCapture>
std::unique_ptr<CodecOperation> make_launch(const OperationInput& input) {
  return std::make_unique<Operation>(input, kCapture);
}

bool is_divisible(const PlannedCodec& codec, bool) { return codec.codec().traits().divisible; }
std::size_t count_in_tensors(Dtype, std::size_t tensor_count) { return kTensors * tensor_count; }
bool is_any(const PlannedCodec&, bool) { return true; }
std::size_t small_count(Dtype dtype, std::size_t) { return kSmallBytes / dtype_bytes(dtype); }

}  // namespace

std::vector<OperationKind> launch_operations() {
  using enum Capture;
  return {
      {"multi_tensor", is_divisible, make_launch<MultiTensor, kNo>, true, true, count_in_tensors},
      {"multi_tensor_graph", is_divisible, make_launch<MultiTensor, kYes>, true, true,
       count_in_tensors},
      {"small", is_any, make_launch<SmallEncode, kNo>, true, true, small_count},
      {"small_graph", is_any, make_launch<SmallEncode, kYes>, true, true, small_count}};
}

}  // namespace tersor::bench
