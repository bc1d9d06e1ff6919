// Encode, encode with feedback, decode, decode and add, reduce.

#include "bench/codec_operations.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "bench/compare.h"
#include "bench/topk_operations.h"
#include "bench/useful_bytes.h"

namespace tersor::bench {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::string_view kOperationNames[] = {
    kEncode, kFeedback,  kFeedbackMiss, kFeedbackOverflow, kFeedbackFarMiss,
    kDecode, kDecodeAdd, kReduce,       kSelectReference};

/// What a sum in the gradient's type may be off by, relative to the values.
double rounding_of(Dtype dtype) { return dtype == Dtype::kF32 ? 1e-6 : 1e-2; }

Buffer copy_of(ConstValueSpan values) {
  Buffer copy(values.bytes());
  std::memcpy(copy.pointer(), values.pointer(), values.bytes());
  return copy;
}

Buffer zeros(std::size_t count) {
  Buffer buffer(count * sizeof(float));
  std::memset(buffer.pointer(), 0, buffer.bytes());
  return buffer;
}

ValueSpan as_f32(const Buffer& buffer) {
  return buffer.values(buffer.bytes() / sizeof(float), Dtype::kF32);
}

class EncodeOperation : public CodecOperation {
 public:
  explicit EncodeOperation(const OperationInput& input)
      : gradient_(input.step(0)), codec_(input.codec, input.plan_for()), frame_(codec_.frame()) {}

  double check() override {
    run();
    payload_bytes_ = tersor::payload_bytes(frame_);
    workspace_bytes_ = codec_.plan().workspace_bytes;
    const ConstByteSpan bytes{gradient_.pointer(), gradient_.bytes()};
    baseline_ = read_baseline(bytes);
    const Buffer decoded(gradient_.bytes());
    const ValueSpan output = decoded.values(gradient_.count(), gradient_.dtype());
    codec_.decode(used_bytes(frame_), output, DecodeMode::kAssign);
    const double error = relative_error(gradient_, output);
    require_within(error, codec_.codec().traits().lossless ? 0.0 : 1.0, "encode then decode");
    return error;
  }

  void run() override { codec_.encode(gradient_, frame_.span()); }

 private:
  ConstValueSpan gradient_;
  PlannedCodec codec_;
  Buffer frame_;
};

class FeedbackOperation : public CodecOperation {
 public:
  explicit FeedbackOperation(const OperationInput& input)
      : input_(input),
        codec_(with_feedback(input.codec, Feedback::kResidual), input.plan_for()),
        frame_(codec_.frame()),
        residual_(zeros(input.count)) {}

  double check() override {
    run();
    payload_bytes_ = tersor::payload_bytes(frame_);
    workspace_bytes_ = codec_.plan().workspace_bytes;
    const ConstValueSpan gradient = input_.step(0);
    baseline_ = triad_baseline(feedback_bytes(gradient.bytes(), residual_.bytes(), payload_bytes_));
    check_same_payload(gradient);
    const Buffer decoded(gradient.bytes());
    const ValueSpan output = decoded.values(gradient.count(), gradient.dtype());
    codec_.decode(used_bytes(frame_), output, DecodeMode::kAssign);
    const double error = relative_error(gradient, output);
    require_within(error, 1.0, "encode with feedback, then decode");
    check_nothing_lost(gradient, output);
    return error;
  }

  void run() override {
    codec_.encode(input_.step(words_.step), frame_.span(), in_place(as_f32(residual_)), &words_);
  }

 private:
  /// With a residual of zeros, feedback changes no byte.
  void check_same_payload(ConstValueSpan gradient) const {
    const PlannedCodec plain(input_.codec, input_.plan_for());
    const Buffer frame = plain.frame();
    plain.encode(gradient, frame.span());
    const auto payload = [](const Buffer& whole) {
      return used_bytes(whole).subspan(sizeof(FrameHeader));
    };
    if (!same_bits(payload(frame), payload(frame_)))
      throw Error("encode with feedback: the payload is not that of encode without");
  }

  /// What was sent and what is kept add up to the gradient.
  void check_nothing_lost(ConstValueSpan gradient, ConstValueSpan decoded) const {
    std::vector<double> sum(gradient.count());
    add_values(1.0, decoded, sum);
    add_values(1.0, as_f32(residual_), sum);
    require_within(relative_error(sum, gradient), rounding_of(gradient.dtype()),
                   "decoded + residual against gradient");
  }

  OperationInput input_;
  PlannedCodec codec_;
  Buffer frame_;
  Buffer residual_;
  StateWords words_;
};

class DecodeOperation : public CodecOperation {
 public:
  DecodeOperation(const OperationInput& input, DecodeMode mode)
      : gradient_(input.step(0)),
        codec_(input.codec, input.plan_for()),
        frame_(codec_.frame()),
        output_(copy_of(gradient_)),
        mode_(mode) {
    codec_.encode(gradient_, frame_.span());
    payload_bytes_ = tersor::payload_bytes(frame_);
    workspace_bytes_ = codec_.plan().workspace_bytes;
  }

  double check() override {
    const Buffer decoded(gradient_.bytes());
    const ValueSpan values = decoded.values(gradient_.count(), gradient_.dtype());
    codec_.decode(used_bytes(frame_), values, DecodeMode::kAssign);
    const double error = relative_error(gradient_, values);
    require_within(error, codec_.codec().traits().lossless ? 0.0 : 1.0, "decode");
    if (mode_ == DecodeMode::kAdd) check_sum(values);
    baseline_ = mode_ == DecodeMode::kAssign
                    ? copy_baseline(decode_bytes(gradient_.bytes(), payload_bytes_))
                    : triad_baseline(decode_add_bytes(touched_bytes(decoded.span(), kCacheLine),
                                                      payload_bytes_));
    return error;
  }

  /// What was added comes off again in the next call.
  void run() override {
    codec_.decode(used_bytes(frame_), output(), mode_, factor_);
    if (mode_ == DecodeMode::kAdd) factor_ = -factor_;
  }

 private:
  ValueSpan output() const { return output_.values(gradient_.count(), gradient_.dtype()); }

  void check_sum(ConstValueSpan decoded) {
    run();
    std::vector<double> sum(gradient_.count());
    add_values(1.0, gradient_, sum);
    add_values(1.0, decoded, sum);
    require_within(relative_error(sum, output()), rounding_of(gradient_.dtype()), "decode and add");
  }

  ConstValueSpan gradient_;
  PlannedCodec codec_;
  Buffer frame_;
  Buffer output_;
  DecodeMode mode_;
  float factor_ = 1.0f;
};

/// The frames of four ranks, each of which has the same values in another order.
class ReduceOperation : public CodecOperation {
 public:
  explicit ReduceOperation(const OperationInput& input)
      : gradient_(input.step(0)),
        codec_(input.codec, input.plan_for()),
        reducer_(with_feedback(input.codec, Feedback::kResidual), input.plan_for()),
        reduced_(codec_.frame()),
        residual_(zeros(input.count)) {
    for (std::size_t rank = 0; rank < kReducedFrames; ++rank) {
      inputs_[rank] = codec_.frame();
      codec_.encode(of_rank(rank).values(gradient_.count(), gradient_.dtype()),
                    inputs_[rank].span());
      frames_[rank] = used_bytes(inputs_[rank]);
    }
  }

  double check() override {
    run();
    payload_bytes_ = tersor::payload_bytes(reduced_);
    workspace_bytes_ = reducer_.plan().workspace_bytes;
    baseline_ = triad_baseline(reduce_bytes(kReducedFrames, residual_.bytes(), payload_bytes_));
    const Buffer decoded(gradient_.bytes());
    const ValueSpan values = decoded.values(gradient_.count(), gradient_.dtype());
    codec_.decode(used_bytes(reduced_), values, DecodeMode::kAssign);
    check_nothing_lost(values);
    return relative_error(exact_sum(), values);
  }

  void run() override {
    reducer_.reduce(frames_, reduced_.span(), in_place(as_f32(residual_)), &words_);
  }

 private:
  /// The gradient, rotated by a share of its count.
  Buffer of_rank(std::size_t rank) const {
    Buffer rotated(gradient_.bytes());
    const std::size_t cut = gradient_.count() * rank / kReducedFrames;
    const ConstValueSpan tail = gradient_.subspan(cut, gradient_.count() - cut);
    std::memcpy(rotated.pointer(), tail.pointer(), tail.bytes());
    std::memcpy(rotated.pointer() + tail.bytes(), gradient_.pointer(),
                gradient_.bytes() - tail.bytes());
    return rotated;
  }

  std::vector<double> exact_sum() const {
    std::vector<double> sum(gradient_.count());
    for (std::size_t rank = 0; rank < kReducedFrames; ++rank)
      add_values(1.0, of_rank(rank).values(gradient_.count(), gradient_.dtype()), sum);
    return sum;
  }

  /// What the frames held is in the reduced frame or in the owner's residual.
  void check_nothing_lost(ConstValueSpan reduced) const {
    std::vector<double> sum(gradient_.count());
    const Buffer decoded(gradient_.bytes());
    const ValueSpan values = decoded.values(gradient_.count(), gradient_.dtype());
    for (const ConstByteSpan frame : frames_) {
      codec_.decode(frame, values, DecodeMode::kAssign);
      add_values(1.0, values, sum);
    }
    add_values(-1.0, as_f32(residual_), sum);
    require_within(relative_error(sum, reduced), rounding_of(gradient_.dtype()), "reduce");
  }

  ConstValueSpan gradient_;
  PlannedCodec codec_, reducer_;
  std::array<Buffer, kReducedFrames> inputs_;
  std::array<ConstByteSpan, kReducedFrames> frames_;
  Buffer reduced_;
  Buffer residual_;
  StateWords words_;
};

bool has_operation(std::string_view name, const PlannedCodec& codec, bool feedback) {
  if (!codec.has_frames()) return false;
  if (name == kFeedback) return feedback;
  if (name == kReduce) return feedback && codec.reduces();
  if (name == kEncode || name == kDecode || name == kDecodeAdd) return true;
  return has_topk_operation(name, codec);
}

}  // namespace

ConstValueSpan step_of(ConstValueSpan gradient, std::size_t count, std::size_t index) {
  constexpr std::size_t kStride = 512;  // values: keeps the alignment
  const std::size_t places = (gradient.count() - count) / kStride + 1;
  return gradient.subspan(index * 2654435761u % places * kStride, count);
}

bool accepts_feedback(const std::string& spec, const PlanFor& plan_for) {
  try {
    PlannedCodec(with_feedback(spec, Feedback::kResidual), plan_for);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

std::span<const std::string_view> operation_names() { return kOperationNames; }

std::vector<std::string> operations_of(const std::string& spec, std::size_t count, Dtype dtype) {
  const PlanFor plan_for{.count = count, .dtype = dtype};
  const PlannedCodec codec(spec, plan_for);
  const bool feedback = accepts_feedback(spec, plan_for);
  std::vector<std::string> names;
  for (const std::string_view name : kOperationNames)
    if (has_operation(name, codec, feedback)) names.emplace_back(name);
  return names;
}

std::unique_ptr<CodecOperation> make_operation(std::string_view name, const OperationInput& input) {
  if (name == kEncode) return std::make_unique<EncodeOperation>(input);
  if (name == kFeedback) return std::make_unique<FeedbackOperation>(input);
  if (name == kDecode) return std::make_unique<DecodeOperation>(input, DecodeMode::kAssign);
  if (name == kDecodeAdd) return std::make_unique<DecodeOperation>(input, DecodeMode::kAdd);
  if (name == kReduce) return std::make_unique<ReduceOperation>(input);
  if (name == kSelectReference) return make_select_reference(input);
  return make_forced_feedback(name, input);
}

void require_within(double error, double limit, std::string_view what) {
  if (!(error <= limit))
    throw Error(fmt::format("{}: relative error {:.3g}, more than {:.3g}", what, error, limit));
}

}  // namespace tersor::bench
