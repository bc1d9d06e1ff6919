// The codecs of the quantising formats (kernels/quantize/formats.h): scales, then codes, for each
// segment.
#pragma once

#include "codecs/calls.h"
#include "codecs/device.h"
#include "codecs/frame.h"
#include "codecs/options.h"
#include "codecs/registry.h"
#include "codecs/slices.h"
#include "codecs/sums.h"
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
            : FrameSums::workspace_bytes(request.contributions) +
                  Views::workspace_bytes(request.contributions, request.threads);
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
    PayloadWriter output(call, frame, bytes_of(call.gradients));
    for_each_piece_of(call, output.sums_pieces(),
                      [&](const Slice& piece) { encode_piece(call, words, piece, output); });
    seal_frame(header(call, dtype_of(call.gradients)), frame, output.sum);
    write_words(words, 0, call.words_out);
  }

  void do_decode(const DecodeCall& call) const override {
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice) {
        const FrameHeader expected = header(call, dtype_of(call.outputs));
        check_frame_bytes(expected, call.frames);
        return kernels::quantize_device_decode<Format>(call, expected);
      }
    check_headers(header(call, dtype_of(call.outputs)), call.frames);
    FrameSums sums(call);
    const kernels::Store store = store_for(bytes_of(call.frames) + bytes_of(call.outputs));
    for_each_piece_of(call, sums.is_on(), [&](const Slice& piece) {
      add_to_sums(call, piece, sums);
      decode_piece(call, piece, store);
    });
    sums.check([&] { poison(call.outputs); });
  }

  void do_reduce(const ReduceCall& call, ByteSpan frame) const override {
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice) {
        const FrameHeader expected = header(call, call.dtype);
        check_frame_bytes(expected, call.frames);
        return kernels::quantize_device_reduce<Format>(call, rounding_,
                                                       device_frame(frame, expected), expected);
      }
    check_headers(header(call, call.dtype), call.frames);
    FrameSums sums(call);
    const StateWords words = words_of(call);
    PayloadWriter output(call, frame, bytes_of(call.frames));
    for_each_piece_of(call, sums.is_on(), [&](const Slice& piece) {
      add_to_sums(call, piece, sums);
      reduce_piece(call, words, piece, output);
    });
    sums.check([&] { poison(call.states); });
    seal_frame(header(call, call.dtype), frame, output.sum);
    write_words(words, 0, call.words_out);
  }

 private:
  // Values of a piece: their codes, and the codes of a few payloads, fit into the first caches.
  static constexpr std::size_t kPieceCount =
      kPieceBytes * 8 / (Format::kBits < 8 ? 8 : Format::kBits);

  /// Where a slice's sections lie in a payload, in bytes, with the padding behind a segment's last.
  struct Range {
    std::size_t scales, scales_end, codes, codes_end;
  };

  static Range range_of(const Segment& segment, const Slice& slice) {
    const Layout layout{segment.count}, before{slice.first}, here{slice.count};
    const std::size_t scales = slice.offset + before.scales_bytes();
    const std::size_t codes = slice.offset + layout.codes_offset() + before.codes_bytes();
    if (slice.is_last)
      return {scales, slice.offset + layout.codes_offset(), codes, slice.offset + layout.bytes()};
    return {scales, scales + here.scales_bytes(), codes, codes + here.codes_bytes()};
  }

  template <typename Call>
  static void add_to_sums(const Call& call, const Slice& slice, FrameSums& sums) {
    const Range range = range_of(call.segments[slice.segment], slice);
    sums.add(range.scales, range.scales_end);
    sums.add(range.codes, range.codes_end);
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

  template <typename Call, typename Visitor>
  static void for_each_piece_of(const Call& call, bool cut, const Visitor& visit) {
    for_each_slice(call.segments, call.execution.threads, segment_bytes, [&](const Slice& slice) {
      for_each_piece(slice, cut ? kPieceCount : slice.count, visit);
    });
  }

  /// Has write(scales, codes, words) write the sections of a piece; sums them and their padding.
  template <typename Write>
  static void write_piece(const Segment& segment, const Slice& piece, PayloadWriter& output,
                          const Write& write) {
    const Range range = range_of(segment, piece);
    const std::size_t scales_bytes = Layout{piece.count}.scales_bytes();
    std::byte* scales = output.payload.data() + range.scales;
    output.write(range.codes, range.codes_end, Layout{piece.count}.codes_bytes(),
                 [&](std::byte* codes, kernels::StreamedWords* words) {
                   write(reinterpret_cast<float*>(scales), codes, words);
                 });
    pad_section(output.payload, range.scales + scales_bytes, range.scales_end);
    output.add(range.scales, range.scales_end);
  }

  void encode_piece(const EncodeCall& call, const StateWords& words, const Slice& piece,
                    PayloadWriter& output) const {
    const Segment& segment = call.segments[piece.segment];
    const ConstValueSpan gradient = call.gradients[piece.segment].subspan(piece.first, piece.count);
    const kernels::Feedback feedback = feedback_of(call.states, piece, words, output.store);
    write_piece(segment, piece, output,
                [&](float* scales, std::byte* codes, kernels::StreamedWords* sum) {
                  if (!is_active(segment)) {
                    std::memset(scales, 0, Layout{piece.count}.scales_bytes());
                    std::memset(codes, 0, Layout{piece.count}.codes_bytes());
                    return keep_residual(feedback, piece.count);
                  }
                  kernels::quantize_encode<Format>(
                      {.gradient = gradient.pointer(),
                       .dtype = gradient.dtype(),
                       .count = piece.count,
                       .feedback = feedback,
                       .noise = noise_of(rounding_, call.random, words, segment, piece.first),
                       .scales = scales,
                       .codes = codes,
                       .store = output.store,
                       .words = sum});
                });
  }

  /// Behind that of the sums.
  template <typename Call>
  static ByteSpan views_workspace(const Call& call) {
    return call.execution.workspace.subspan(FrameSums::workspace_bytes(call.frames.size()));
  }

  template <typename Call>
  static void view_piece(const Call& call, const Slice& piece, Views& views) {
    const Range range = range_of(call.segments[piece.segment], piece);
    for (std::size_t i = 0; i < call.frames.size(); ++i) {
      const std::byte* payload = payload_of(call.frames[i]).data();
      views[i] = {reinterpret_cast<const float*>(payload + range.scales), payload + range.codes};
    }
  }

  void decode_piece(const DecodeCall& call, const Slice& piece, kernels::Store store) const {
    Views views(call.frames.size(), views_workspace(call), piece.task);
    view_piece(call, piece, views);
    const ValueSpan output = call.outputs[piece.segment].subspan(piece.first, piece.count);
    kernels::quantize_decode<Format>({.payloads = views.span(),
                                      .count = piece.count,
                                      .factor = call.factor,
                                      .mode = call.mode,
                                      .output = output.pointer(),
                                      .dtype = output.dtype(),
                                      .store = store});
  }

  void reduce_piece(const ReduceCall& call, const StateWords& words, const Slice& piece,
                    PayloadWriter& output) const {
    Views views(call.frames.size(), views_workspace(call), piece.task);
    view_piece(call, piece, views);
    const Segment& segment = call.segments[piece.segment];
    write_piece(segment, piece, output,
                [&](float* scales, std::byte* codes, kernels::StreamedWords* sum) {
                  kernels::quantize_reduce<Format>(
                      {.payloads = views.span(),
                       .count = piece.count,
                       .feedback = feedback_of(call.states, piece, words, output.store),
                       .noise = noise_of(rounding_, call.random, words, segment, piece.first),
                       .scales = scales,
                       .codes = codes,
                       .store = output.store,
                       .words = sum});
                });
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
