// topk: the largest values with their indices. Sizes, sections and checks for kernels/topk.

#include "codecs/format_codec.h"
#include "codecs/registry.h"
#include "kernels/topk/cpu.h"
#include "kernels/topk/device.h"

#include <tersor/codecs/topk.h>

#include <limits>
#include <string>

namespace tersor::encoding {
namespace {

constexpr std::size_t kPartAlignment = 64;  // alignment of the workspace's parts

constexpr Number kTopkDensity = {.key = "density", .above = 0, .most = 1, .standard = 0.01};
constexpr Choice<TopkValues, 3> kTopkValues = {
    "values",
    {{{"f32", TopkValues::kF32}, {"bf16", TopkValues::kBf16}, {"int8", TopkValues::kInt8}}}};

constexpr Dtype value_dtype(TopkValues values) {
  if (values == TopkValues::kF32) return Dtype::kF32;
  return values == TopkValues::kBf16 ? Dtype::kBf16 : Dtype::kI8;
}

class TopkCodec final : public FormatCodec<TopkCodec> {
 public:
  TopkCodec(CodecSpec spec, TopkOptions options)
      : FormatCodec(std::move(spec), kTopkCodecId), options_(options) {}

  static TopkOptions read(OptionReader& reader) {
    return {.density = reader.read(kTopkDensity), .values = reader.read(kTopkValues)};
  }

  CodecTraits traits() const override { return {.divisible = false}; }

  PayloadFormat format() const {
    return format_of_number(options_.density, static_cast<unsigned>(options_.values));
  }
  std::size_t segment_bytes(const Segment& segment, Dtype) const {
    return layout_of(segment).bytes();
  }
  std::size_t workspace_bytes(const PlanRequest& request) const {
    std::size_t bytes = decode_workspace_bytes(request);
    for (const Segment& segment : request.segments) {
      check_selected(layout_of(segment));
      bytes = std::max(bytes, encode_workspace_bytes(request, segment));
    }
    return bytes;
  }

  void device_encode(const EncodeCall& call, const kernels::DeviceFrame& frame) const {
    kernels::topk_device_encode(call, options_, frame);
  }
  void device_decode(const DecodeCall& call, const FrameHeader& expected) const {
    kernels::topk_device_decode(call, options_, expected);
  }

  void host_encode(const EncodeCall& call, const FrameHeader& header, ByteSpan frame) const {
    const StateWords words = words_of(call);
    Threads single_thread;
    Threads& threads = call.execution.threads == nullptr ? single_thread : *call.execution.threads;
    ByteSpan rest = payload_of(frame);
    for (std::size_t i = 0; i < call.segments.size(); ++i) {
      const ByteSpan payload = rest.first(layout_of(call.segments[i]).bytes());
      encode_segment(call, i, words, payload, threads);
      rest = rest.subspan(payload.size());
    }
    seal_frame(header, frame, call.execution.threads);
    write_words(words, 0, call.words_out);
  }

  void host_decode(const DecodeCall& call, const FrameHeader& expected) const {
    check_frames(expected, call.frames, call.execution.threads);
    check_indices(call);
    Threads single_thread;
    Threads& threads = call.execution.threads == nullptr ? single_thread : *call.execution.threads;
    std::size_t offset = 0;
    for (std::size_t i = 0; i < call.segments.size(); ++i) {
      decode_segment(call, i, offset, threads);
      offset += layout_of(call.segments[i]).bytes();
    }
  }

 private:
  using Views = ViewList<kernels::TopkPayloadView>;

  TopkLayout layout_of(const Segment& segment) const {
    return {segment.count, topk_selected(segment.count, options_.density), options_.values};
  }

  void check_selected(const TopkLayout& layout) const {
    if (layout.selected > std::numeric_limits<std::uint32_t>::max())
      throw InvalidArgumentError("codec " + spec().text() + " would select " +
                                 std::to_string(layout.selected) + " of " +
                                 std::to_string(layout.count) +
                                 " values, but a segment takes fewer than 2^32: lower the density");
  }

  /// Segments are encoded in turn, in the same workspace.
  std::size_t encode_workspace_bytes(const PlanRequest& request, const Segment& segment) const {
    if constexpr (kHasDeviceKernels)
      if (request.memory == Memory::kDevice)
        return kernels::topk_device_workspace_bytes(segment.count, options_.density);
    const TopkLayout layout = layout_of(segment);
    return kernels::topk_workspace_bytes(layout.count, layout.selected, request.threads);
  }

  static std::size_t decode_workspace_bytes(const PlanRequest& request) {
    if (request.memory == Memory::kDevice)
      return kernels::device_frames_bytes(request.contributions);
    return views_bytes(request.contributions) +
           kernels::topk_decode_workspace_bytes(request.dtype, request.threads);
  }

  static std::size_t views_bytes(std::size_t frames) {
    return align_up(Views::workspace_bytes(frames, 1), kPartAlignment);
  }

  static void pad(ByteSpan payload, const TopkLayout& layout) {
    pad_section(payload, layout.first_bytes(), layout.index_offset());
    pad_section(payload, layout.index_offset() + layout.index_bytes(), layout.scales_offset());
    pad_section(payload, layout.scales_offset() + layout.scales_bytes(), layout.values_offset());
    pad_section(payload, layout.values_offset() + layout.values_bytes(), layout.bytes());
  }

  void encode_segment(const EncodeCall& call, std::size_t index, const StateWords& words,
                      ByteSpan payload, Threads& threads) const {
    const Segment& segment = call.segments[index];
    const TopkLayout layout = layout_of(segment);
    const kernels::ErrorFeedback feedback =
        feedback_of(call.states, Slice{.segment = index, .count = segment.count}, words,
                    kernels::Store::kCached);
    if (!is_active(segment)) {
      pad_section(payload, 0, payload.size());
      return keep_residual(feedback, segment.count);
    }
    pad(payload, layout);
    kernels::topk_encode({.gradient = call.gradients[index].pointer(),
                          .dtype = call.gradients[index].dtype(),
                          .count = segment.count,
                          .feedback = feedback,
                          .k = layout.selected,
                          .value_dtype = value_dtype(options_.values),
                          .payload = sections<kernels::TopkPayload>(payload, layout),
                          .workspace = call.execution.workspace},
                         threads);
  }

  /// Returns the sections of a segment's payload. View is TopkPayload or TopkPayloadView.
  template <typename View, typename Byte>
  static View sections(std::span<Byte> payload, const TopkLayout& layout) {
    const auto at = [&]<typename T>(T*& pointer, std::size_t offset) {
      pointer = reinterpret_cast<T*>(payload.data() + offset);
    };
    View view = {};
    at(view.first, 0);
    at(view.index_in_tile, layout.index_offset());
    if (layout.values == TopkValues::kInt8) at(view.scales, layout.scales_offset());
    view.values = payload.data() + layout.values_offset();
    return view;
  }

  /// Indices come from other ranks. Every index must lie inside the segment.
  void check_indices(const DecodeCall& call) const {
    std::size_t offset = 0;
    for (std::size_t i = 0; i < call.segments.size(); ++i) {
      const TopkLayout layout = layout_of(call.segments[i]);
      for (std::size_t frame = 0; frame < call.frames.size(); ++frame) {
        const auto view = sections<kernels::TopkPayloadView>(
            payload_of(call.frames[frame]).subspan(offset), layout);
        const char* wrong = kernels::topk_validate(view, layout.count, layout.selected);
        if (wrong != nullptr) throw_invalid_indices(frame, call.frames.size(), i, wrong);
      }
      offset += layout.bytes();
    }
  }

  void decode_segment(const DecodeCall& call, std::size_t index, std::size_t offset,
                      Threads& threads) const {
    const TopkLayout layout = layout_of(call.segments[index]);
    Views views(call.frames.size(), call.execution.workspace, 0);
    for (std::size_t i = 0; i < call.frames.size(); ++i)
      views[i] =
          sections<kernels::TopkPayloadView>(payload_of(call.frames[i]).subspan(offset), layout);
    const ValueSpan& output = call.outputs[index];
    const std::size_t begin = call.window_first.value_or(0);
    kernels::topk_decode(
        {.payloads = views.span(),
         .value_dtype = value_dtype(options_.values),
         .count = layout.count,
         .begin = begin,
         .end = begin + output.count(),
         .factor = call.factor,
         .mode = call.mode,
         .output = output.pointer(),
         .dtype = output.dtype(),
         .workspace = call.execution.workspace.subspan(views_bytes(call.frames.size()))},
        threads);
  }

  TopkOptions options_;
};
static_assert(FrameFormat<TopkCodec> && !ReducedFrameFormat<TopkCodec>);

}  // namespace

CodecEntry topk_entry() {
  return entry_of<TopkCodec>({.name = "topk",
                              .id = kTopkCodecId,
                              .summary = "exactly the k largest values, with indices; use with +ef",
                              .options = {kTopkDensity.option(), kTopkValues.option()}},
                             [](const FrameHeader& header) {
                               return "density=" + number_text(number_in_header(header)) + "," +
                                      kTopkValues.text(codec_flags(header));
                             });
}

}  // namespace tersor::encoding
