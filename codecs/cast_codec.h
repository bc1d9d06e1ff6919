// The codecs of the cast formats (kernels/cast/formats.h): values that travel as values, in frames
// or bare, so that a transport may add them.
#pragma once

#include "codecs/checks.h"
#include "codecs/frame_codec.h"
#include "codecs/options.h"
#include "codecs/registry.h"
#include "kernels/cast/formats.h"
#include "kernels/cast/kernels.h"

#include <tersor/codecs/none.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace tersor::encoding {

template <class Format>
class CastCodec final : public FrameCodec<CastCodec<Format>> {
 public:
  explicit CastCodec(CodecSpec spec) : FrameCodec<CastCodec>(std::move(spec), Format::kId) {}

  CodecTraits traits() const override {
    return {.lossless = Format::kLossless && !this->has_feedback(), .block = 1};
  }

  PayloadFormat format() const { return {}; }
  std::size_t segment_bytes(const Segment& segment, Dtype dtype) const {
    return SegmentBytes{wire_dtype(dtype)}(segment);
  }
  std::size_t workspace_bytes(const PlanRequest& request) const {
    return summed_workspace_bytes<const void*>(request);
  }

  void device_encode(const EncodeCall& call, const kernels::DeviceFrame& frame) const {
    kernels::cast_device_encode<Format>(call, frame);
  }
  void device_decode(const DecodeCall& call, const FrameHeader& expected) const {
    kernels::cast_device_decode<Format>(call, expected);
  }
  void device_reduce(const ReduceCall& call, const kernels::DeviceFrame& frame) const {
    kernels::cast_device_reduce<Format>(call, frame);
  }

  void host_encode(const EncodeCall& call, const FrameHeader& header, ByteSpan frame) const {
    const Dtype wire = wire_dtype(dtype_of(call.gradients));
    FrameWriter output(call, frame, bytes_of(call.gradients));
    for_each_piece_of(call, wire, output.sums_pieces(), [&](const Slice& piece) {
      write_piece(call, wire, piece, output, [&](std::byte* values, kernels::StreamedWords* sum) {
        output.add_overflows(encode_slice(call, output.words, piece, {values, output.store, sum}));
      });
    });
    output.seal(header);
  }

  void host_decode(const DecodeCall& call, const FrameHeader& expected) const {
    check_headers(expected, call.frames);
    FrameSums sums(call);
    const kernels::Store store = store_for(bytes_of(call.frames) + bytes_of(call.outputs));
    const Dtype wire = wire_dtype(dtype_of(call.outputs));
    for_each_piece_of(call, wire, sums.is_on(), [&](const Slice& piece) {
      const Range range = range_of(call.segments[piece.segment], piece, wire);
      sums.add(range.begin, range.end);
      Views views(call.frames.size(), views_workspace(call), piece.task);
      view_piece(call, range, views);
      decode_slice(call, piece, views.span(), store);
    });
    sums.check([&] { poison(call.outputs); });
  }

  void host_reduce(const ReduceCall& call, const FrameHeader& header, ByteSpan frame) const {
    check_headers(header, call.frames);
    FrameSums sums(call);
    const Dtype wire = wire_dtype(call.dtype);
    FrameWriter output(call, frame, bytes_of(call.frames));
    for_each_piece_of(call, wire, sums.is_on(), [&](const Slice& piece) {
      const Range range = range_of(call.segments[piece.segment], piece, wire);
      sums.add(range.begin, range.end);
      write_piece(call, wire, piece, output, [&](std::byte* values, kernels::StreamedWords* sum) {
        output.add_overflows(
            reduce_piece(call, output.words, piece, range, {values, output.store, sum}));
      });
    });
    sums.check([&] { poison(call.states); });
    output.seal(header);
  }

 protected:
  std::vector<Round> plan_rounds(const PlanRequest& request) const override {
    Round round{.exchanges = {Exchange::kTwoShot, Exchange::kGather},
                .native_dtype = bare_dtype(request.dtype),
                .native_count = values_of(request.segments)};
    const bool as_short = round.native_dtype == wire_dtype(request.dtype);
    if (!this->has_feedback())
      round.exchanges.insert(as_short ? round.exchanges.begin() : round.exchanges.end(),
                             Exchange::kNativeSum);
    return {round};
  }

  /// Bare values lie one segment behind the other, without padding.
  void do_encode_native(const EncodeCall& call, float factor, ValueSpan values) const override {
    check_no_feedback();
    const Dtype dtype = bare_dtype(dtype_of(call.gradients));
    check_native(*this, values, dtype, values_of(call.segments));
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice)
        return kernels::cast_device_encode_native<Format>(call, factor, values);
    const StateWords words = words_of(call);
    const kernels::Store store = store_for(values.bytes() + bytes_of(call.gradients));
    std::atomic<std::uint64_t> overflows{0};
    for_each_slice(
        call.segments, call.execution.threads, BareBytes{dtype}, [&](const Slice& slice) {
          std::byte* bare = values.pointer() + slice.offset + first_byte(slice, dtype);
          overflows += encode_slice(call, words, slice, Target::bare(bare, store, factor));
        });
    write_words(words, overflows, call.words_out);
  }

  void do_decode_native(const DecodeCall& call, ConstValueSpan values) const override {
    const Dtype dtype = bare_dtype(dtype_of(call.outputs));
    check_native(*this, values, dtype, values_of(call.segments));
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice)
        return kernels::cast_device_decode_native<Format>(call, values);
    const kernels::Store store = store_for(values.bytes() + bytes_of(call.outputs));
    for_each_slice(call.segments, call.execution.threads, BareBytes{dtype},
                   [&](const Slice& slice) {
                     const void* bare = values.pointer() + slice.offset + first_byte(slice, dtype);
                     decode_slice(call, slice, {&bare, 1}, store, Travel::kBare);
                   });
  }

 private:
  using Views = ViewList<const void*>;
  using Travel = kernels::Travel;

  /// Where a slice's values are written, and how.
  struct Target {
    std::byte* values;
    kernels::Store store;  // the residual's too
    kernels::StreamedWords* words = nullptr;
    Travel travel = Travel::kFramed;
    float factor = 1.0f;

    static Target bare(std::byte* values, kernels::Store store, float factor) {
      return {values, store, nullptr, Travel::kBare, factor};
    }
  };

  /// Where a slice lies in a payload, in bytes; a segment's last with the padding behind it.
  struct Range {
    std::size_t begin, end;
  };

  struct SegmentBytes {
    Dtype wire;
    std::size_t operator()(const Segment& segment) const {
      return ValuesLayout{segment.count, wire}.bytes();
    }
  };
  struct BareBytes {
    Dtype dtype;
    std::size_t operator()(const Segment& segment) const {
      return ValuesLayout{segment.count, dtype}.values_bytes();
    }
  };

  static Dtype wire_dtype(Dtype gradient) {
    return visit_gradient_dtype(
        gradient, []<typename G>(G) { return DtypeOf<typename Format::template Wire<G>>::value; });
  }

  static Dtype bare_dtype(Dtype gradient) {
    return visit_gradient_dtype(
        gradient, []<typename G>(G) { return DtypeOf<kernels::Bare<Format, G>>::value; });
  }

  static Dtype dtype_of_travel(Travel travel, Dtype gradient) {
    return travel == Travel::kBare ? bare_dtype(gradient) : wire_dtype(gradient);
  }

  static std::size_t first_byte(const Slice& slice, Dtype wire) {
    return slice.first * dtype_bytes(wire);
  }

  void check_no_feedback() const {
    if (this->has_feedback())
      throw InvalidArgument("codec " + this->spec().text() +
                            " has no native exchange: bare values carry no feedback");
  }

  static Range range_of(const Segment& segment, const Slice& slice, Dtype wire) {
    const std::size_t begin = slice.offset + first_byte(slice, wire);
    return {begin, slice.is_last ? slice.offset + SegmentBytes{wire}(segment)
                                 : begin + slice.count * dtype_bytes(wire)};
  }

  template <typename Call, typename Visitor>
  static void for_each_piece_of(const Call& call, Dtype wire, bool cut, const Visitor& visit) {
    const std::size_t count = kPieceBytes / dtype_bytes(wire);
    for_each_slice(
        call.segments, call.execution.threads, SegmentBytes{wire},
        [&](const Slice& slice) { for_each_piece(slice, cut ? count : slice.count, visit); });
  }

  template <typename Call, typename Write>
  static void write_piece(const Call& call, Dtype wire, const Slice& piece, FrameWriter& output,
                          const Write& write) {
    const Range range = range_of(call.segments[piece.segment], piece, wire);
    output.add(output.write(range.begin, range.end, piece.count * dtype_bytes(wire), write),
               range.end);
  }

  static std::size_t encode_slice(const EncodeCall& call, const StateWords& words,
                                  const Slice& slice, const Target& target) {
    const ConstValueSpan gradient = call.gradients[slice.segment].subspan(slice.first, slice.count);
    const kernels::ErrorFeedback feedback = feedback_of(call.states, slice, words, target.store);
    if (!is_active(call.segments[slice.segment])) {
      std::memset(target.values, 0,
                  slice.count * dtype_bytes(dtype_of_travel(target.travel, gradient.dtype())));
      keep_residual(feedback, slice.count);
      return 0;
    }
    const bool in_place = gradient.pointer() == target.values && target.factor == 1;
    if (Format::kLossless && in_place) return 0;  // bare values in the gradient's own memory
    return kernels::cast_encode<Format>({.gradient = gradient.pointer(),
                                         .dtype = gradient.dtype(),
                                         .count = slice.count,
                                         .feedback = feedback,
                                         .values = target.values,
                                         .travel = target.travel,
                                         .factor = target.factor,
                                         .store = target.store,
                                         .words = target.words});
  }

  template <typename Call>
  static void view_piece(const Call& call, const Range& range, Views& views) {
    for (std::size_t i = 0; i < call.frames.size(); ++i)
      views[i] = payload_of(call.frames[i]).data() + range.begin;
  }

  static void decode_slice(const DecodeCall& call, const Slice& slice,
                           std::span<const void* const> payloads, kernels::Store store,
                           Travel travel = Travel::kFramed) {
    const ValueSpan output = call.outputs[slice.segment].subspan(slice.first, slice.count);
    kernels::cast_decode<Format>({.payloads = payloads,
                                  .count = slice.count,
                                  .factor = call.factor,
                                  .mode = call.mode,
                                  .output = output.pointer(),
                                  .dtype = output.dtype(),
                                  .store = store,
                                  .travel = travel});
  }

  static std::size_t reduce_piece(const ReduceCall& call, const StateWords& words,
                                  const Slice& piece, const Range& range, const Target& target) {
    Views views(call.frames.size(), views_workspace(call), piece.task);
    view_piece(call, range, views);
    return kernels::cast_reduce<Format>(
        {.payloads = views.span(),
         .dtype = call.dtype,
         .count = piece.count,
         .factor = call.factor,
         .feedback = feedback_of(call.states, piece, words, target.store),
         .values = target.values,
         .store = target.store,
         .words = target.words});
  }
};

template <class Format>
CodecEntry cast_entry() {
  static_assert(ReducedFrameFormat<CastCodec<Format>>);
  return {{.name = Format::kName, .id = Format::kId, .summary = Format::kSummary, .keys = {}},
          [](const CodecSpec& spec, const CodecInfo& info) -> std::shared_ptr<const Codec> {
            return std::make_shared<CastCodec<Format>>(OptionReader(spec, info).canonical());
          }};
}

}  // namespace tersor::encoding
