// See without_us.h.

#include "bench/device/without_us.h"

#include <fmt/format.h>
#include <tersor/codecs/int8.h>
#include <tersor/codecs/topk.h>
#include <tersor/error.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "bench/compare.h"
#include "bench/device/cub_topk.h"
#include "bench/device/feedback.h"
#include "bench/device/two_kernel.h"
#include "bench/useful_bytes.h"

namespace tersor::bench {
namespace {

constexpr std::size_t kCubValues = std::size_t{1} << 31;

/// Throws Error unless both errors are the same, but for ties and for the rounding of what is
/// decoded.
void require_like(double error, double of_codec, std::string_view what) {
  if (!(std::abs(error - of_codec) <= 0.05 * of_codec))
    throw Error(
        fmt::format("{}: relative error {:.4g}, but the codec's is {:.4g}", what, error, of_codec));
}

class TwoKernels : public DeviceOperation {
 public:
  explicit TwoKernels(const DeviceInput& input)
      : DeviceOperation(input), layout_{input.host.count} {
    payload_bytes_ = layout_.bytes();
    useful_bytes_ = encode_bytes(input.host.step(0).bytes(), payload_bytes_);
    gradients_ = std::make_unique<DeviceGradients>(input, sets());
    payloads_ = std::make_unique<RotatedBuffer>(sets(), payload_bytes_);
  }

  double check() override {
    const ConstValueSpan gradient = input_.host.step(0);
    queue();
    const Buffer payload = on_host(payloads_->at(0), input_.stream);
    const double error = relative_error(gradient, decoded(payload));
    require_like(error, codec_error(), kTwoKernels);
    return error;
  }

  void queue() override {
    const ConstValueSpan gradient = gradients_->at(call_);
    std::byte* payload = payloads_->at(call_).data();
    queue_two_kernels({.gradient = gradient.pointer(),
                       .dtype = gradient.dtype(),
                       .count = gradient.count(),
                       .scales = reinterpret_cast<float*>(payload),
                       .codes = reinterpret_cast<std::int8_t*>(payload + layout_.codes_offset())},
                      cuda_stream(input_.stream));
    ++call_;
  }

  std::vector<TimedCall> references() override { return memory_references(); }

 private:
  std::vector<float> decoded(const Buffer& payload) const {
    const auto* scales = reinterpret_cast<const float*>(payload.pointer());
    const auto* codes =
        reinterpret_cast<const std::int8_t*>(payload.pointer() + layout_.codes_offset());
    std::vector<float> values(layout_.count);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = scales[i / Int8Layout::kBlock] * static_cast<float>(codes[i]);
    return values;
  }

  double codec_error() const {
    const ConstValueSpan gradient = input_.host.step(0);
    const PlannedCodec codec(input_.host.codec, input_.plan_on_host());
    const Buffer frame = codec.frame();
    codec.encode(gradient, frame.span());
    const Buffer typed(gradient.bytes());
    const ValueSpan output = typed.values(gradient.count(), gradient.dtype());
    codec.decode(used_bytes(frame), output, DecodeMode::kAssign);
    return relative_error(gradient, output);
  }

  Int8Layout layout_;
  std::unique_ptr<DeviceGradients> gradients_;
  std::unique_ptr<RotatedBuffer> payloads_;
  std::size_t call_ = 0;
};

std::size_t kept_of(const PlannedCodec& codec) {
  double density = TopkOptions{}.density;
  for (const auto& [key, value] : codec.codec().spec().options)
    if (key == "density") density = std::stod(value);
  return topk_kept(codec.count(), density);
}

class CubTopkOperation : public DeviceOperation {
 public:
  CubTopkOperation(const DeviceInput& input, std::string_view name)
      : DeviceOperation(input),
        name_(name),
        kept_(kept_of(PlannedCodec(input.host.codec, input.plan_on_host()))),
        topk_(name == kCubSort ? CubTopkKind::kSort : CubTopkKind::kSelect, input.host.count,
              kept_) {
    payload_bytes_ = TopkLayout{input.host.count, kept_, TopkValues::kF32}.bytes();
    workspace_bytes_ = topk_.workspace_bytes();
    useful_bytes_ = feedback_bytes(input.host.step(0).bytes(), input.host.count * sizeof(float),
                                   payload_bytes_);
    gradients_ = std::make_unique<DeviceGradients>(input, sets());
    state_ = std::make_unique<DeviceState>(input, sets());
    indices_ = std::make_unique<RotatedBuffer>(sets(), kept_ * sizeof(std::uint32_t));
    values_ = std::make_unique<RotatedBuffer>(sets(), kept_ * sizeof(float));
  }

  double check() override {
    queue();
    const Buffer indices = on_host(indices_->at(0), input_.stream);
    const Buffer values = on_host(values_->at(0), input_.stream);
    std::vector<float> decoded(input_.host.count);
    for (std::size_t i = 0; i < kept_; ++i)
      decoded.at(reinterpret_cast<const std::uint32_t*>(indices.pointer())[i]) =
          reinterpret_cast<const float*>(values.pointer())[i];
    const double error = feedback_error(input_.host.step(0), state_->initial(), decoded);
    require_like(error, host_feedback_error(input_, state_->initial()), name_);
    return error;
  }

  void queue() override {
    topk_.queue({.gradient = reinterpret_cast<const float*>(gradients_->at(call_).pointer()),
                 .residual = reinterpret_cast<float*>(state_->residual(call_).pointer()),
                 .indices = reinterpret_cast<std::uint32_t*>(indices_->at(call_).data()),
                 .values = reinterpret_cast<float*>(values_->at(call_).data())},
                cuda_stream(input_.stream));
    ++call_;
  }

  std::vector<TimedCall> references() override { return memory_references(); }

 private:
  std::string name_;
  std::size_t kept_;
  CubTopk topk_;
  std::unique_ptr<DeviceGradients> gradients_;
  std::unique_ptr<DeviceState> state_;
  std::unique_ptr<RotatedBuffer> indices_, values_;
  std::size_t call_ = 0;
};

bool has_option(const Codec& codec, std::string_view key, std::string_view value) {
  return std::ranges::any_of(codec.spec().options, [&](const auto& option) {
    return option.first == key && option.second == value;
  });
}

}  // namespace

bool is_without_us(std::string_view name) {
  return name == kTwoKernels || name == kCubSort || name == kCubSelect;
}

bool has_operation_without_us(std::string_view name, const PlannedCodec& planned) {
  const Codec& codec = planned.codec();
  if (name == kTwoKernels)
    return codec.id() == kInt8CodecId && !has_option(codec, "rounding", "stochastic");
  return codec.id() == kTopkCodecId && planned.dtype() == Dtype::kF32 &&
         planned.count() < kCubValues && !has_option(codec, "values", "bf16") &&
         !has_option(codec, "values", "int8");
}

std::unique_ptr<DeviceOperation> make_operation_without_us(std::string_view name,
                                                           const DeviceInput& input) {
  if (name == kTwoKernels) return std::make_unique<TwoKernels>(input);
  return std::make_unique<CubTopkOperation>(input, name);
}

}  // namespace tersor::bench
