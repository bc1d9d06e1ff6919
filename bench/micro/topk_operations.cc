// Top-k by std::nth_element, with the same selection as the codec.

#include <tersor/codecs/topk.h>
#include <tersor/error.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "bench/common/compare.h"
#include "bench/micro/codec_operations.h"
#include "bench/micro/useful_bytes.h"
#include "kernels/scalar/convert.h"

namespace tersor::bench {
namespace {

constexpr std::size_t kSampled = std::size_t{1} << 20, kIndexed = std::size_t{1} << 32;

class SelectReference : public CodecOperation {
 public:
  explicit SelectReference(const OperationInput& input)
      : CodecOperation(input),
        codec_(input.codec, input.plan_on_host()),
        indices_(input.count),
        selected_(selected_of(codec_)) {
    payload_bytes_ = TopkLayout{input.count, selected_.size(), TopkValues::kF32}.bytes();
    workspace_bytes_ = indices_.size() * sizeof(indices_[0]);
    work_.bytes = encode_bytes(gradient().bytes(), payload_bytes_);
  }

  double check() override {
    run();
    const Buffer frame = codec_.frame();
    codec_.encode(gradient(), frame.span());
    const Buffer values = decoded(codec_, frame);
    std::vector<float> expected(input_.count);
    for (std::size_t i = 0; i < selected_.size(); ++i) expected[indices_[i]] = selected_[i];
    if (!same_bits(std::as_bytes(std::span(expected)), values.span()))
      throw Error("encode_nth_element: the selection is not that of encode");
    return relative_error(gradient(), as_gradient(values));
  }

  void call(std::size_t) override {
    const auto values = gradient().as<float>();
    std::iota(indices_.begin(), indices_.end(), std::uint32_t{0});
    const auto end = indices_.begin() + static_cast<std::ptrdiff_t>(selected_.size());
    std::nth_element(indices_.begin(), end, indices_.end(),
                     [values](std::uint32_t a, std::uint32_t b) {
                       const auto key_a = kernels::magnitude_bits(values[a]);
                       const auto key_b = kernels::magnitude_bits(values[b]);
                       return key_a != key_b ? key_a > key_b : a < b;
                     });
    std::sort(indices_.begin(), end);
    std::transform(indices_.begin(), end, selected_.begin(),
                   [values](std::uint32_t index) { return values[index]; });
  }

  std::vector<TimedCall> references() override {
    OperationInput on_one_thread = input_;
    on_one_thread.threads = nullptr;
    const std::shared_ptr encode = make_encode(on_one_thread);
    return {{"encode", [encode] { encode->run(); }}};
  }

 private:
  PlannedCodec codec_;
  std::vector<std::uint32_t> indices_;
  std::vector<float> selected_;
};

}  // namespace

bool sends_f32(const Codec& codec) {
  const auto& options = codec.spec().options;
  return std::ranges::none_of(options, [](const auto& option) {
    return option.first == "values" && option.second != "f32";
  });
}

std::size_t selected_of(const PlannedCodec& codec) {
  double density = TopkOptions{}.density;
  for (const auto& [key, value] : codec.codec().spec().options)
    if (key == "density") density = std::stod(value);
  return topk_selected(codec.count(), density);
}

bool has_far_miss(const PlannedCodec& codec) {
  return codec.codec().id() == kTopkCodecId && codec.count() >= kSampled &&
         codec.count() < kIndexed;
}

OperationKind select_reference() {
  return {.name = "encode_nth_element",
          .has =
              [](const PlannedCodec& codec, bool) {
                return codec.codec().id() == kTopkCodecId && codec.dtype() == Dtype::kF32 &&
                       codec.count() < kIndexed && sends_f32(codec.codec());
              },
          .make = [](const OperationInput& input) -> std::unique_ptr<CodecOperation> {
            return std::make_unique<SelectReference>(input);
          },
          .checksum = false,
          .parallel = false};
}

}  // namespace tersor::bench
