// The codecs of the cast formats (kernels/cast/formats.h): values that travel as values, in frames
// or bare, so that a transport may add them.
#pragma once

#include "codecs/calls.h"
#include "codecs/checks.h"
#include "codecs/device.h"
#include "codecs/frame.h"
#include "codecs/options.h"
#include "codecs/registry.h"
#include "codecs/slices.h"
#include "kernels/cast/kernels.h"

#include <tersor/codecs/none.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace tersor::encoding {

template <class Format>
class CastCodec final : public Codec {
 public:
  explicit CastCodec(CodecSpec spec) : Codec(std::move(spec), Format::kId) {}

  CodecTraits traits() const override { return {.lossless = Format::kLossless && !has_feedback()}; }

 protected:
  PlanSizes plan_sizes(const PlanRequest& request) const override {
    const Dtype wire = wire_dtype(request.dtype);
    const std::size_t workspace =
        request.memory == Memory::kDevice
            ? kernels::device_frames_bytes(request.contributions)
            : Views::workspace_bytes(request.contributions, request.threads);
    return {.frame_bytes = sizeof(FrameHeader) + payload_bytes(request.segments, wire),
            .workspace_bytes = workspace};
  }

  std::vector<Round> plan_rounds(const PlanRequest& request) const override {
    Round round;
    round.native_dtype = wire_dtype(request.dtype);
    round.native_count = values_of(request.segments);
    if (!has_feedback()) round.exchanges.push_back(Exchange::kNativeSum);
    round.exchanges.insert(round.exchanges.end(), {Exchange::kTwoShot, Exchange::kGather});
    return {round};
  }

  void do_encode(const EncodeCall& call, ByteSpan frame) const override {
    const Dtype dtype = dtype_of(call.gradients);
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice)
        return kernels::cast_device_encode<Format>(call, device_frame(frame, header(call, dtype)));
    const Dtype wire = wire_dtype(dtype);
    const StateWords words = words_of(call);
    const Output output{payload_of(frame), wire, 1.0f,
                        store_for(frame.size() + bytes_of(call.gradients))};
    std::atomic<std::uint64_t> overflows{0};
    for_each_slice(call.segments, call.execution.threads, SegmentBytes{wire},
                   [&](const Slice& slice) {
                     pad(output, call.segments[slice.segment], slice);
                     overflows += encode_slice(call, words, slice, output);
                   });
    seal_frame(header(call, dtype), frame, call.execution.threads);
    write_words(words, overflows, call.words_out);
  }

  void do_decode(const DecodeCall& call) const override {
    const Dtype dtype = dtype_of(call.outputs);
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice) {
        check_frame_bytes(header(call, dtype), call.frames);
        return kernels::cast_device_decode<Format>(call, header(call, dtype));
      }
    check_frames(header(call, dtype), call.frames, call.execution.threads);
    const kernels::Store store = store_for(bytes_of(call.frames) + bytes_of(call.outputs));
    for_each_slice(call.segments, call.execution.threads, SegmentBytes{wire_dtype(dtype)},
                   [&](const Slice& slice) {
                     Views views(call.frames.size(), call.execution.workspace, slice.task);
                     view_slice(call, slice, dtype, views);
                     decode_slice(call, slice, views.span(), store);
                   });
  }

  void do_reduce(const ReduceCall& call, ByteSpan frame) const override {
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice) {
        const FrameHeader expected = header(call, call.dtype);
        check_frame_bytes(expected, call.frames);
        return kernels::cast_device_reduce<Format>(call, device_frame(frame, expected), expected);
      }
    check_frames(header(call, call.dtype), call.frames, call.execution.threads);
    const Dtype wire = wire_dtype(call.dtype);
    const StateWords words = words_of(call);
    const Output output{payload_of(frame), wire, 1.0f,
                        store_for(frame.size() + bytes_of(call.frames))};
    std::atomic<std::uint64_t> overflows{0};
    for_each_slice(call.segments, call.execution.threads, SegmentBytes{wire},
                   [&](const Slice& slice) {
                     pad(output, call.segments[slice.segment], slice);
                     overflows += reduce_slice(call, words, slice, output);
                   });
    seal_frame(header(call, call.dtype), frame, call.execution.threads);
    write_words(words, overflows, call.words_out);
  }

  /// Bare values lie one segment behind the other, without padding.
  void do_encode_native(const EncodeCall& call, float factor, ValueSpan values) const override {
    check_no_feedback();
    const Dtype wire = wire_dtype(dtype_of(call.gradients));
    check_native(*this, values, wire, values_of(call.segments));
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice)
        return kernels::cast_device_encode_native<Format>(call, factor, values);
    const StateWords words = words_of(call);
    const Output output{{values.pointer(), values.bytes()},
                        wire,
                        factor,
                        store_for(values.bytes() + bytes_of(call.gradients))};
    std::atomic<std::uint64_t> overflows{0};
    for_each_slice(call.segments, call.execution.threads, BareBytes{wire}, [&](const Slice& slice) {
      overflows += encode_slice(call, words, slice, output);
    });
    write_words(words, overflows, call.words_out);
  }

  void do_decode_native(const DecodeCall& call, ConstValueSpan values) const override {
    const Dtype wire = wire_dtype(dtype_of(call.outputs));
    check_native(*this, values, wire, values_of(call.segments));
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice)
        return kernels::cast_device_decode_native<Format>(call, values);
    const kernels::Store store = store_for(values.bytes() + bytes_of(call.outputs));
    for_each_slice(call.segments, call.execution.threads, BareBytes{wire}, [&](const Slice& slice) {
      const void* bare = values.pointer() + slice.offset + first_byte(slice, wire);
      decode_slice(call, slice, {&bare, 1}, store);
    });
  }

 private:
  using Views = ViewList<const void*>;

  struct Output {
    ByteSpan payload;
    Dtype wire;
    float factor;
    kernels::Store store;
  };

  struct SegmentBytes {
    Dtype wire;
    std::size_t operator()(const Segment& segment) const {
      return ValuesLayout{segment.count, wire}.bytes();
    }
  };
  struct BareBytes {
    Dtype wire;
    std::size_t operator()(const Segment& segment) const {
      return ValuesLayout{segment.count, wire}.values_bytes();
    }
  };

  static Dtype wire_dtype(Dtype gradient) {
    return visit_gradient_dtype(
        gradient, []<typename G>(G) { return DtypeOf<typename Format::template Wire<G>>::value; });
  }

  static std::size_t first_byte(const Slice& slice, Dtype wire) {
    return slice.first * dtype_bytes(wire);
  }

  static std::size_t payload_bytes(std::span<const Segment> segments, Dtype wire) {
    std::size_t bytes = 0;
    for (const Segment& segment : segments) bytes += SegmentBytes{wire}(segment);
    return bytes;
  }

  template <typename Call>
  FrameHeader header(const Call& call, Dtype dtype) const {
    return frame_header({*this, call.segments, dtype, call.identity},
                        {.bytes = payload_bytes(call.segments, wire_dtype(dtype))});
  }

  void check_no_feedback() const {
    if (has_feedback())
      throw InvalidArgument("codec " + spec().text() +
                            " has no native exchange: bare values carry no feedback");
  }

  static void pad(const Output& output, const Segment& segment, const Slice& slice) {
    if (!slice.is_last) return;
    const ValuesLayout layout{segment.count, output.wire};
    pad_section(output.payload, slice.offset + layout.values_bytes(),
                slice.offset + layout.bytes());
  }

  std::size_t encode_slice(const EncodeCall& call, const StateWords& words, const Slice& slice,
                           const Output& output) const {
    std::byte* values = output.payload.data() + slice.offset + first_byte(slice, output.wire);
    const ConstValueSpan gradient = call.gradients[slice.segment].subspan(slice.first, slice.count);
    const kernels::Feedback feedback = feedback_of(call.states, slice, words);
    if (!is_active(call.segments[slice.segment])) {
      std::memset(values, 0, slice.count * dtype_bytes(output.wire));
      keep_residual(feedback, slice.count);
      return 0;
    }
    const bool in_place = gradient.pointer() == values && output.factor == 1;
    if (Format::kLossless && in_place) return 0;  // bare values in the gradient's own memory
    return kernels::cast_encode<Format>({.gradient = gradient.pointer(),
                                         .dtype = gradient.dtype(),
                                         .count = slice.count,
                                         .feedback = feedback,
                                         .values = values,
                                         .factor = output.factor,
                                         .store = output.store});
  }

  template <typename Call>
  static void view_slice(const Call& call, const Slice& slice, Dtype dtype, Views& views) {
    const std::size_t offset = slice.offset + first_byte(slice, wire_dtype(dtype));
    for (std::size_t i = 0; i < call.frames.size(); ++i)
      views[i] = payload_of(call.frames[i]).data() + offset;
  }

  static void decode_slice(const DecodeCall& call, const Slice& slice,
                           std::span<const void* const> payloads, kernels::Store store) {
    const ValueSpan output = call.outputs[slice.segment].subspan(slice.first, slice.count);
    kernels::cast_decode<Format>({.payloads = payloads,
                                  .count = slice.count,
                                  .factor = call.factor,
                                  .mode = call.mode,
                                  .output = output.pointer(),
                                  .dtype = output.dtype(),
                                  .store = store});
  }

  static std::size_t reduce_slice(const ReduceCall& call, const StateWords& words,
                                  const Slice& slice, const Output& output) {
    Views views(call.frames.size(), call.execution.workspace, slice.task);
    view_slice(call, slice, call.dtype, views);
    return kernels::cast_reduce<Format>(
        {.payloads = views.span(),
         .dtype = call.dtype,
         .count = slice.count,
         .feedback = feedback_of(call.states, slice, words),
         .values = output.payload.data() + slice.offset + first_byte(slice, output.wire),
         .store = output.store});
  }
};

template <class Format>
CodecEntry cast_entry() {
  return {{.name = Format::kName, .id = Format::kId, .summary = Format::kSummary, .keys = {}},
          [](const CodecSpec& spec, const CodecInfo& info) -> std::shared_ptr<const Codec> {
            return std::make_shared<CastCodec<Format>>(OptionReader(spec, info).canonical());
          }};
}

}  // namespace tersor::encoding
