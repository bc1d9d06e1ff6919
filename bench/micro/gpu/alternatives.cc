// Alternatives without Tersor.

#include <fmt/format.h>
#include <tersor/codecs/int8.h>
#include <tersor/codecs/topk.h>
#include <tersor/error.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "bench/common/compare.h"
#include "bench/common/gpu/gpu.h"
#include "bench/micro/codec_operations.h"
#include "bench/micro/gpu/gpu_machine.h"
#include "bench/micro/gpu/kernels.h"
#include "bench/micro/useful_bytes.h"

namespace tersor::bench {
namespace {

constexpr std::string_view kTwoKernels = "encode_two_kernels";
constexpr std::string_view kCubSort = "encode_feedback_cub_sort";
constexpr std::string_view kCubSelect = "encode_feedback_cub_select";
constexpr std::size_t kCubValues = std::size_t{1} << 31;

/// Throws Error unless the errors agree within 5 %, the tolerance for ties and for rounding in
/// decode.
void require_similar(double error, double expected, std::string_view what) {
  if (!(std::abs(error - expected) <= 0.05 * expected))
    throw Error(
        fmt::format("{}: relative error {:.4g}, but the codec's is {:.4g}", what, error, expected));
}

class TwoKernels : public CodecOperation {
 public:
  explicit TwoKernels(const OperationInput& input)
      : CodecOperation(input),
        layout_{input.count},
        sets_(sets_for(
            {.access = Access::kRead, .bytes = encode_bytes(gradient().bytes(), layout_.bytes())})),
        gradients_(input, sets_, Steps::kAll),
        payloads_(rotated(sets_, layout_.bytes())) {
    payload_bytes_ = layout_.bytes();
  }

  double check() override {
    run();
    const double error = relative_error(gradient(), decoded_payload(on_host(payloads_)));
    require_similar(error, codec_error(), kTwoKernels);
    return error;
  }

  void call(std::size_t call) override {
    const ConstValueSpan gradient = gradients_.at(call);
    std::byte* payload = payloads_.at(call).data();
    queue_two_kernels({.gradient = gradient.pointer(),
                       .dtype = gradient.dtype(),
                       .count = gradient.count(),
                       .scales = reinterpret_cast<float*>(payload),
                       .codes = reinterpret_cast<std::int8_t*>(payload + layout_.codes_offset())},
                      stream_of(input_.machine->traits().stream));
  }

 private:
  std::vector<float> decoded_payload(const Buffer& payload) const {
    const auto* scales = reinterpret_cast<const float*>(payload.pointer());
    const auto* codes =
        reinterpret_cast<const std::int8_t*>(payload.pointer() + layout_.codes_offset());
    std::vector<float> values(layout_.count);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = scales[i / Int8Layout::kBlock] * static_cast<float>(codes[i]);
    return values;
  }

  double codec_error() const {
    const PlannedCodec codec(input_.codec, input_.plan_on_host());
    const Buffer frame = codec.frame();
    codec.encode(gradient(), frame.span());
    return relative_error(gradient(), as_gradient(decoded(codec, frame)));
  }

  Int8Layout layout_;
  std::size_t sets_;
  Gradients gradients_;
  RotatedBuffer payloads_;
};

class CubTopkOperation : public CodecOperation {
 public:
  CubTopkOperation(const OperationInput& input, CubTopkKind kind)
      : CodecOperation(input),
        name_(kind == CubTopkKind::kSort ? kCubSort : kCubSelect),
        codec_(with_feedback(input.codec, Feedback::kResidual), input.plan_on_host()),
        selected_(selected_of(codec_)),
        topk_(kind, input.count, selected_),
        sets_(sets_for(work())),
        gradients_(input, sets_, Steps::kAll),
        states_(input, sets_),
        indices_(rotated(sets_, selected_ * sizeof(std::uint32_t))),
        values_(rotated(sets_, selected_ * sizeof(float))) {
    workspace_bytes_ = topk_.workspace_bytes();
  }

  double check() override {
    run();
    const Buffer indices = on_host(indices_), values = on_host(values_);
    std::vector<float> decoded(input_.count);
    for (std::size_t i = 0; i < selected_; ++i)
      decoded.at(reinterpret_cast<const std::uint32_t*>(indices.pointer())[i]) =
          reinterpret_cast<const float*>(values.pointer())[i];
    const double error = feedback_error(gradient(), states_.initial(), decoded);
    require_similar(error, codec_error(), name_);
    return error;
  }

  void call(std::size_t call) override {
    topk_.queue({.gradient = reinterpret_cast<const float*>(gradients_.at(call).pointer()),
                 .residual = reinterpret_cast<float*>(states_.residual(call).pointer()),
                 .indices = reinterpret_cast<std::uint32_t*>(indices_.at(call).data()),
                 .values = reinterpret_cast<float*>(values_.at(call).data())},
                stream_of(input_.machine->traits().stream));
  }

 private:
  MemoryWork work() {
    payload_bytes_ = TopkLayout{input_.count, selected_, TopkValues::kF32}.bytes();
    return {.access = Access::kUpdate,
            .bytes = feedback_bytes(gradient().bytes(), residual_bytes(), payload_bytes_)};
  }

  double codec_error() const {
    HostState state = states_.on_host();
    const Buffer frame = codec_.frame();
    codec_.encode(gradient(), frame.span(), state.state(), &state.words);
    return feedback_error(gradient(), states_.initial(), as_gradient(decoded(codec_, frame)));
  }

  std::string_view name_;
  PlannedCodec codec_;
  std::size_t selected_;
  CubTopk topk_;
  std::size_t sets_;
  Gradients gradients_;
  ResidualStates states_;
  RotatedBuffer indices_, values_;
};

bool rounds_to_nearest(const PlannedCodec& planned, bool) {
  const std::pair<std::string, std::string> random = {"rounding", "stochastic"};
  const Codec& codec = planned.codec();
  return codec.id() == kInt8CodecId && std::ranges::count(codec.spec().options, random) == 0;
}

bool selects_f32(const PlannedCodec& codec, bool) {
  return codec.codec().id() == kTopkCodecId && codec.dtype() == Dtype::kF32 &&
         codec.count() < kCubValues && sends_f32(codec.codec());
}

template <CubTopkKind kKind>
std::unique_ptr<CodecOperation> make_cub(const OperationInput& input) {
  return std::make_unique<CubTopkOperation>(input, kKind);
}

}  // namespace

std::vector<OperationKind> alternative_operations() {
  const auto two_kernels = [](const OperationInput& input) -> std::unique_ptr<CodecOperation> {
    return std::make_unique<TwoKernels>(input);
  };
  return {{kTwoKernels, rounds_to_nearest, two_kernels, false},
          {kCubSort, selects_f32, make_cub<CubTopkKind::kSort>, false},
          {kCubSelect, selects_f32, make_cub<CubTopkKind::kSelect>, false}};
}

}  // namespace tersor::bench
