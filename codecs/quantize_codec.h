// The codecs of the quantising formats (kernels/quantize/formats.h): scales, then codes, for each
// segment.
#pragma once

#include "codecs/calls.h"
#include "codecs/device.h"
#include "codecs/frame.h"
#include "codecs/options.h"
#include "codecs/registry.h"
#include "codecs/slices.h"
#include "kernels/quantize/kernels.h"

#include <tersor/codec.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace tersor::encoding {

template <class Format>
class QuantizeCodec final : public Codec {
 public:
  using Layout = typename Format::Layout;
  using Views = ViewList<kernels::QuantizedView>;

  QuantizeCodec(CodecSpec spec, Rounding rounding)
      : Codec(std::move(spec), Format::kId), rounding_(rounding) {}

  CodecTraits traits() const override { return {}; }

 protected:
  PlanSizes plan_sizes(const PlanRequest& request) const override {
    const std::size_t workspace =
        request.memory == Memory::kDevice
            ? kernels::device_frames_bytes(request.contributions)
            : Views::workspace_bytes(request.contributions, request.threads);
    return {.frame_bytes = sizeof(FrameHeader) + payload_bytes(request.segments),
            .workspace_bytes = workspace};
  }

  std::vector<Round> plan_rounds(const PlanRequest&) const override {
    return {{.exchanges = {Exchange::kTwoShot, Exchange::kGather}}};
  }

  void do_encode(const EncodeCall& call, ByteSpan frame) const override {
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice)
        return kernels::quantize_device_encode<Format>(
            call, rounding_, device_frame(frame, header(call, dtype_of(call.gradients))));
    const StateWords words = words_of(call);
    const Output output{payload_of(frame), store_for(frame.size() + bytes_of(call.gradients))};
    for_each_slice(call.segments, call.execution.threads, segment_bytes,
                   [&](const Slice& slice) { encode_slice(call, words, slice, output); });
    seal_frame(header(call, dtype_of(call.gradients)), frame, call.execution.threads);
    write_words(words, 0, call.words_out);
  }

  void do_decode(const DecodeCall& call) const override {
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice) {
        const FrameHeader expected = header(call, dtype_of(call.outputs));
        check_frame_bytes(expected, call.frames);
        return kernels::quantize_device_decode<Format>(call, expected);
      }
    check_frames(header(call, dtype_of(call.outputs)), call.frames, call.execution.threads);
    const kernels::Store store = store_for(bytes_of(call.frames) + bytes_of(call.outputs));
    for_each_slice(call.segments, call.execution.threads, segment_bytes,
                   [&](const Slice& slice) { decode_slice(call, slice, store); });
  }

  void do_reduce(const ReduceCall& call, ByteSpan frame) const override {
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice) {
        const FrameHeader expected = header(call, call.dtype);
        check_frame_bytes(expected, call.frames);
        return kernels::quantize_device_reduce<Format>(call, rounding_,
                                                       device_frame(frame, expected), expected);
      }
    check_frames(header(call, call.dtype), call.frames, call.execution.threads);
    const StateWords words = words_of(call);
    const Output output{payload_of(frame), store_for(frame.size() + bytes_of(call.frames))};
    for_each_slice(call.segments, call.execution.threads, segment_bytes,
                   [&](const Slice& slice) { reduce_slice(call, words, slice, output); });
    seal_frame(header(call, call.dtype), frame, call.execution.threads);
    write_words(words, 0, call.words_out);
  }

 private:
  struct Output {
    ByteSpan payload;
    kernels::Store store;
  };

  /// Where a slice's scales and codes lie in a payload.
  template <typename Byte>
  struct Sections {
    Byte* scales;
    Byte* codes;
  };

  template <typename Byte>
  static Sections<Byte> sections_of(std::span<Byte> payload, const Segment& segment,
                                    const Slice& slice) {
    const Layout layout{segment.count};
    Byte* start = payload.data() + slice.offset;
    return {start + Layout{slice.first}.scales_bytes(),
            start + layout.codes_offset() + Layout{slice.first}.codes_bytes()};
  }

  static std::size_t segment_bytes(const Segment& segment) { return Layout{segment.count}.bytes(); }

  static std::size_t payload_bytes(std::span<const Segment> segments) {
    std::size_t bytes = 0;
    for (const Segment& segment : segments) bytes += segment_bytes(segment);
    return bytes;
  }

  template <typename Call>
  FrameHeader header(const Call& call, Dtype dtype) const {
    return frame_header({*this, call.segments, dtype, call.identity},
                        {.bytes = payload_bytes(call.segments)});
  }

  static void pad(ByteSpan payload, const Segment& segment, const Slice& slice) {
    if (!slice.is_last) return;
    const Layout layout{segment.count};
    const std::size_t codes_end = layout.codes_offset() + layout.codes_bytes();
    pad_section(payload, slice.offset + layout.scales_bytes(),
                slice.offset + layout.codes_offset());
    pad_section(payload, slice.offset + codes_end, slice.offset + layout.bytes());
  }

  void encode_slice(const EncodeCall& call, const StateWords& words, const Slice& slice,
                    const Output& output) const {
    const Segment& segment = call.segments[slice.segment];
    const auto sections = sections_of(output.payload, segment, slice);
    const ConstValueSpan gradient = call.gradients[slice.segment].subspan(slice.first, slice.count);
    const kernels::Feedback feedback = feedback_of(call.states, slice, words);
    pad(output.payload, segment, slice);
    if (!is_active(segment)) {
      std::memset(sections.scales, 0, Layout{slice.count}.scales_bytes());
      std::memset(sections.codes, 0, Layout{slice.count}.codes_bytes());
      return keep_residual(feedback, slice.count);
    }
    kernels::quantize_encode<Format>(
        {.gradient = gradient.pointer(),
         .dtype = gradient.dtype(),
         .count = slice.count,
         .feedback = feedback,
         .noise = noise_of(rounding_, call.random, words, segment, slice.first),
         .scales = reinterpret_cast<float*>(sections.scales),
         .codes = sections.codes,
         .store = output.store});
  }

  template <typename Call>
  static void view_slice(const Call& call, const Slice& slice, Views& views) {
    for (std::size_t i = 0; i < call.frames.size(); ++i) {
      const auto sections =
          sections_of(payload_of(call.frames[i]), call.segments[slice.segment], slice);
      views[i] = {reinterpret_cast<const float*>(sections.scales), sections.codes};
    }
  }

  void decode_slice(const DecodeCall& call, const Slice& slice, kernels::Store store) const {
    Views views(call.frames.size(), call.execution.workspace, slice.task);
    view_slice(call, slice, views);
    const ValueSpan output = call.outputs[slice.segment].subspan(slice.first, slice.count);
    kernels::quantize_decode<Format>({.payloads = views.span(),
                                      .count = slice.count,
                                      .factor = call.factor,
                                      .mode = call.mode,
                                      .output = output.pointer(),
                                      .dtype = output.dtype(),
                                      .store = store});
  }

  void reduce_slice(const ReduceCall& call, const StateWords& words, const Slice& slice,
                    const Output& output) const {
    Views views(call.frames.size(), call.execution.workspace, slice.task);
    view_slice(call, slice, views);
    const Segment& segment = call.segments[slice.segment];
    const auto sections = sections_of(output.payload, segment, slice);
    pad(output.payload, segment, slice);
    kernels::quantize_reduce<Format>(
        {.payloads = views.span(),
         .count = slice.count,
         .feedback = feedback_of(call.states, slice, words),
         .noise = noise_of(rounding_, call.random, words, segment, slice.first),
         .scales = reinterpret_cast<float*>(sections.scales),
         .codes = sections.codes,
         .store = output.store});
  }

  Rounding rounding_;
};

template <class Format>
CodecEntry quantize_entry() {
  return {{.name = Format::kName,
           .id = Format::kId,
           .summary = Format::kSummary,
           .keys = {kRoundingChoice.help()}},
          [](const CodecSpec& spec, const CodecInfo& info) -> std::shared_ptr<const Codec> {
            OptionReader reader(spec, info);
            const Rounding rounding = reader.read(kRoundingChoice);
            return std::make_shared<QuantizeCodec<Format>>(reader.canonical(), rounding);
          }};
}

}  // namespace tersor::encoding
