// Top-k with missed thresholds, and top-k by std::nth_element.

#include "bench/topk_operations.h"

#include <fmt/format.h>
#include <tersor/codecs/topk.h>
#include <tersor/error.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "bench/codec_operations.h"
#include "bench/compare.h"
#include "bench/useful_bytes.h"
#include "kernels/scalar/convert.h"
#include "kernels/topk/cpu.h"

namespace tersor::bench {
namespace {

using kernels::TopkForce;
using kernels::TopkPath;

/// Reads the payload's layout from a frame.
TopkLayout layout_of(const Buffer& frame, std::size_t count) {
  const FrameHeader header = read_frame_header(frame.span());
  double density;
  std::memcpy(&density, header.parameters, sizeof(density));
  return {count, topk_selected(count, density),
          static_cast<TopkValues>(header.flags >> kCodecFlagShift)};
}

Dtype value_dtype(TopkValues values) {
  return values == TopkValues::kF32    ? Dtype::kF32
         : values == TopkValues::kBf16 ? Dtype::kBf16
                                       : Dtype::kI8;
}

/// A payload to fill, and the codec's payload for the same gradient.
class TopkOperation : public CodecOperation {
 protected:
  explicit TopkOperation(const OperationInput& input)
      : CodecOperation(input), codec_(input.codec, input.plan_on_host()), frame_(codec_.frame()) {
    codec_.encode(input.step(0), frame_.span());
    layout_ = layout_of(frame_, input.count);
    payload_ = Buffer(layout_.bytes());
    std::memset(payload_.pointer(), 0, payload_.bytes());
    payload_bytes_ = payload_.bytes();
  }

  template <typename T>
  T* section(std::size_t offset) const {
    return reinterpret_cast<T*>(payload_.pointer() + offset);
  }

  void check_payload(std::string_view what) const {
    if (!same_bits(payload_.span(), used_bytes(frame_).subspan(sizeof(FrameHeader))))
      throw Error(std::string(what) + ": the payload is not that of encode");
  }

  double error() const { return relative_error(gradient(), as_gradient(decoded(codec_, frame_))); }

  PlannedCodec codec_;
  Buffer frame_;
  TopkLayout layout_{};
  Buffer payload_;
};

class ForcedFeedback : public TopkOperation {
 public:
  ForcedFeedback(const OperationInput& input, std::string_view name, TopkForce force,
                 TopkPath expected)
      : TopkOperation(input),
        name_(name),
        force_(force),
        expected_(expected),
        residual_(residual_bytes()),
        workspace_(
            kernels::topk_workspace_bytes(input.count, layout_.selected, input.threads->count())) {
    std::memset(residual_.pointer(), 0, residual_.bytes());
    workspace_bytes_ = workspace_.bytes();
    work_ = {.access = Access::kUpdate,
             .bytes = feedback_bytes(gradient().bytes(), residual_.bytes(), payload_bytes_)};
  }

  double check() override {
    run();
    check_payload(name_);
    if (path_ != expected_)
      throw NotMeasurable("topk finds its threshold another way among these values");
    return error();
  }

  void call(std::size_t call) override {
    const ConstValueSpan gradient = input_.step(call);
    path_ = kernels::topk_encode({.gradient = gradient.pointer(),
                                  .dtype = gradient.dtype(),
                                  .count = gradient.count(),
                                  .feedback = {residual_.pointer(), residual_.pointer()},
                                  .k = layout_.selected,
                                  .value_dtype = value_dtype(layout_.values),
                                  .payload = sections(),
                                  .workspace = workspace_.span(),
                                  .force = force_},
                                 *input_.threads)
                .path;
  }

 private:
  kernels::TopkPayload sections() const {
    const bool has_scales = layout_.values == TopkValues::kInt8;
    return {section<std::uint32_t>(0), section<std::uint16_t>(layout_.index_offset()),
            section<void>(layout_.values_offset()),
            has_scales ? section<float>(layout_.scales_offset()) : nullptr};
  }

  std::string name_;
  TopkForce force_;
  TopkPath expected_, path_ = TopkPath::kHit;
  Buffer residual_, workspace_;
};

class SelectReference : public TopkOperation {
 public:
  explicit SelectReference(const OperationInput& input)
      : TopkOperation(input), indices_(input.count) {
    workspace_bytes_ = indices_.size() * sizeof(indices_[0]);
  }

  double check() override {
    run();
    check_payload(kSelectReference);
    return error();
  }

  void call(std::size_t) override {
    const auto values = input_.step(0).as<float>();
    std::iota(indices_.begin(), indices_.end(), std::uint32_t{0});
    const auto selected = indices_.begin() + static_cast<std::ptrdiff_t>(layout_.selected);
    std::nth_element(indices_.begin(), selected, indices_.end(),
                     [values](std::uint32_t a, std::uint32_t b) {
                       const auto key_a = kernels::magnitude_bits(values[a]);
                       const auto key_b = kernels::magnitude_bits(values[b]);
                       return key_a != key_b ? key_a > key_b : a < b;
                     });
    std::sort(indices_.begin(), selected);
    write_payload(values);
  }

  std::vector<TimedCall> references() override {
    OperationInput on_one_thread = input_;
    on_one_thread.threads = nullptr;
    const std::shared_ptr encode = make_operation(kEncode, on_one_thread);
    return {{std::string(kEncode), [encode] { encode->run(); }}};
  }

 private:
  void write_payload(std::span<const float> values) const {
    auto* first = section<std::uint32_t>(0);
    auto* index_in_tile = section<std::uint16_t>(layout_.index_offset());
    auto* selected_values = section<float>(layout_.values_offset());
    std::size_t tile = 0;
    for (std::size_t i = 0; i < layout_.selected; ++i) {
      const std::uint32_t index = indices_[i];
      for (; tile <= index / TopkLayout::kTile; ++tile) first[tile] = static_cast<std::uint32_t>(i);
      index_in_tile[i] = static_cast<std::uint16_t>(index % TopkLayout::kTile);
      selected_values[i] = values[index];
    }
    for (; tile <= layout_.tiles(); ++tile)
      first[tile] = static_cast<std::uint32_t>(layout_.selected);
  }

  std::vector<std::uint32_t> indices_;
};

}  // namespace

bool sends_f32(const Codec& codec) {
  const auto& options = codec.spec().options;
  return std::ranges::none_of(options, [](const auto& option) {
    return option.first == "values" && option.second != "f32";
  });
}

bool has_topk_operation(std::string_view name, const PlannedCodec& codec) {
  constexpr std::size_t kSampled = std::size_t{1} << 20, kIndexed = std::size_t{1} << 32;
  if (codec.codec().id() != kTopkCodecId || codec.count() >= kIndexed) return false;
  if (name == kSelectReference) return codec.dtype() == Dtype::kF32 && sends_f32(codec.codec());
  constexpr std::string_view kForced[] = {kFeedbackMiss, kFeedbackOverflow, kFeedbackFarMiss};
  return std::ranges::find(kForced, name) != std::end(kForced) && codec.count() >= kSampled;
}

std::unique_ptr<CodecOperation> make_topk_operation(std::string_view name,
                                                    const OperationInput& input) {
  const auto make = [&](TopkForce force, TopkPath path) {
    return std::make_unique<ForcedFeedback>(input, name, force, path);
  };
  if (name == kFeedbackMiss) return make(TopkForce::kTooFew, TopkPath::kGather);
  if (name == kFeedbackOverflow) return make(TopkForce::kTooMany, TopkPath::kGather);
  if (name == kFeedbackFarMiss) return make(TopkForce::kRadix, TopkPath::kRadix);
  if (name == kSelectReference) return std::make_unique<SelectReference>(input);
  throw InvalidArgumentError(fmt::format("no operation \"{}\"", name));
}

}  // namespace tersor::bench
