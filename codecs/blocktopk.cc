// blocktopk: the largest values of each block with their places; sizes, sections and checks around
// kernels/blocktopk.

#include "codecs/frame_codec.h"
#include "codecs/options.h"
#include "codecs/registry.h"
#include "kernels/blocktopk/cpu.h"
#include "kernels/blocktopk/device.h"

#include <tersor/codecs/blocktopk.h>
#include <tersor/error.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <tuple>

namespace tersor::encoding {
namespace {

using Sections = kernels::BlocktopkPayload;
using View = kernels::BlocktopkView;

constexpr Number kBlocktopkDensity = {.key = "density", .above = 0, .most = 0.25, .standard = 0.01};
constexpr Choice<BlocktopkValues, 3> kBlocktopkValues = {"values",
                                                         {{{"sign", BlocktopkValues::kSign},
                                                           {"int4", BlocktopkValues::kInt4},
                                                           {"bf16", BlocktopkValues::kBf16}}}};

/// The first fault of several frames, in their order, whichever thread finds it.
class FirstFault {
 public:
  void add(std::size_t frame, std::size_t segment, const char* text) {
    const std::scoped_lock lock(mutex_);
    if (text_ != nullptr && std::tie(frame_, segment_) <= std::tie(frame, segment)) return;
    std::tie(frame_, segment_, text_) = std::tie(frame, segment, text);
  }

  /// Throws WireError where there is one.
  void check(std::size_t frames) const {
    if (text_ != nullptr)
      throw WireError("frame " + std::to_string(frame_) + " of " + std::to_string(frames) +
                      ", segment " + std::to_string(segment_) + ": " + text_);
  }

 private:
  std::mutex mutex_;
  std::size_t frame_ = 0;
  std::size_t segment_ = 0;
  const char* text_ = nullptr;
};

class BlocktopkCodec final : public FrameCodec<BlocktopkCodec> {
 public:
  BlocktopkCodec(CodecSpec spec, BlocktopkOptions options)
      : FrameCodec(std::move(spec), kBlocktopkCodecId), options_(options), block_(options) {}

  CodecTraits traits() const override {
    return {.unit = BlocktopkBlock::kValues, .block = BlocktopkBlock::kValues};
  }

  PayloadFormat format() const {
    return format_of_number(options_.density, static_cast<unsigned>(options_.values));
  }
  std::size_t segment_bytes(const Segment& segment, Dtype) const {
    return layout_of(segment).bytes();
  }
  std::size_t workspace_bytes(const PlanRequest& request) const {
    return views_workspace_bytes<View>(request);
  }

  void device_encode(const EncodeCall& call, const kernels::DeviceFrame& frame) const {
    kernels::blocktopk_device_encode(call, block_, frame);
  }
  void device_decode(const DecodeCall& call, const FrameHeader& expected) const {
    kernels::blocktopk_device_decode(call, block_, expected);
  }
  void device_reduce(const ReduceCall& call, const kernels::DeviceFrame& frame) const {
    kernels::blocktopk_device_reduce(call, block_, frame);
  }

  void host_encode(const EncodeCall& call, const FrameHeader& head, ByteSpan frame) const {
    FrameWriter output(call, frame, bytes_of(call.gradients), kernels::Store::kCached);
    for_each_slice_of(call, [&](const Slice& slice) {
      if (!is_active(call.segments[slice.segment])) return write_nothing(call, slice, output);
      const ConstValueSpan gradient =
          call.gradients[slice.segment].subspan(slice.first, slice.count);
      output.add_overflows(kernels::blocktopk_encode(
          {.gradient = gradient.pointer(),
           .dtype = gradient.dtype(),
           .count = slice.count,
           .feedback = feedback_of(call.states, slice, output.words, output.store),
           .block = block_,
           .output = sections<Sections>(output.payload, call, slice)}));
      finish(call, slice, output);
    });
    output.seal(head);
  }

  void host_decode(const DecodeCall& call, const FrameHeader& expected) const {
    check_frames(expected, call.frames, call.execution.threads);
    check_places(call);
    const kernels::Store store = store_for(bytes_of(call.frames) + bytes_of(call.outputs));
    for_each_slice_of(call, [&](const Slice& slice) {
      Views views(call.frames.size(), call.execution.workspace, slice.task);
      const ValueSpan output = call.outputs[slice.segment].subspan(slice.first, slice.count);
      kernels::blocktopk_decode({.input = input_of(call, slice, views),
                                 .factor = call.factor,
                                 .mode = call.mode,
                                 .output = output.pointer(),
                                 .dtype = output.dtype(),
                                 .store = store});
    });
  }

  void host_reduce(const ReduceCall& call, const FrameHeader& head, ByteSpan frame) const {
    check_frames(head, call.frames, call.execution.threads);
    check_places(call);
    FrameWriter output(call, frame, bytes_of(call.frames), kernels::Store::kCached);
    for_each_slice_of(call, [&](const Slice& slice) {
      Views views(call.frames.size(), call.execution.workspace, slice.task);
      output.add_overflows(kernels::blocktopk_reduce(
          {.input = input_of(call, slice, views),
           .factor = call.factor,
           .feedback = feedback_of(call.states, slice, output.words, output.store),
           .output = sections<Sections>(output.payload, call, slice)}));
      finish(call, slice, output);
    });
    output.seal(head);
  }

 private:
  using Views = ViewList<View>;

  BlocktopkLayout layout_of(const Segment& segment) const { return {segment.count, block_}; }

  template <typename Call, typename Visitor>
  void for_each_slice_of(const Call& call, const Visitor& visit) const {
    for_each_slice(
        call.segments, call.execution.threads,
        [&](const Segment& segment) { return layout_of(segment).bytes(); }, visit);
  }

  /// A slice's sections in a payload; View is Sections or View.
  template <typename List, typename Byte, typename Call>
  List sections(std::span<Byte> payload, const Call& call, const Slice& slice) const {
    const BlocktopkLayout layout = layout_of(call.segments[slice.segment]);
    using Word = std::remove_pointer_t<decltype(List::high)>;
    const auto at = [&](std::size_t offset) {
      return reinterpret_cast<Word*>(payload.data() + slice.offset + offset);
    };
    return List{at(0), at(layout.high_offset()), at(layout.low_offset()),
                at(layout.values_offset())}
        .from(slice.first / BlocktopkBlock::kValues, block_);
  }

  /// Calls visit(begin, end, last) for a slice's part of each section, in bytes; `last` is where
  /// the section ends, with its padding.
  template <typename Visitor>
  void for_each_section(const Segment& segment, const Slice& slice, const Visitor& visit) const {
    const BlocktopkLayout layout = layout_of(segment);
    const std::size_t first = slice.first / BlocktopkBlock::kValues;
    const std::size_t end = first + ceil_div(slice.count, BlocktopkBlock::kValues);
    const auto section = [&](std::size_t begin, std::size_t last, std::size_t words_a_block) {
      const std::size_t bytes = words_a_block * sizeof(std::uint32_t);
      visit(slice.offset + begin + first * bytes, slice.offset + begin + end * bytes,
            slice.offset + last);
    };
    section(0, layout.high_offset(), block_.scale_words());
    section(layout.high_offset(), layout.low_offset(), block_.high_words());
    section(layout.low_offset(), layout.values_offset(), block_.low_words());
    section(layout.values_offset(), layout.bytes(), block_.value_words());
  }

  /// Pads and sums what a slice has written.
  template <typename Call>
  void finish(const Call& call, const Slice& slice, FrameWriter& output) const {
    for_each_section(call.segments[slice.segment], slice,
                     [&](std::size_t begin, std::size_t end, std::size_t last) {
                       if (slice.is_last) pad_section(output.payload, end, last);
                       output.add(begin, slice.is_last ? last : end);
                     });
  }

  /// Of an inactive segment nothing is kept.
  void write_nothing(const EncodeCall& call, const Slice& slice, FrameWriter& output) const {
    for_each_section(call.segments[slice.segment], slice,
                     [&](std::size_t begin, std::size_t end, std::size_t) {
                       pad_section(output.payload, begin, end);
                     });
    keep_residual(feedback_of(call.states, slice, output.words, output.store), slice.count);
    finish(call, slice, output);
  }

  /// Lists come from elsewhere: no place may lie outside its block.
  template <typename Call>
  void check_places(const Call& call) const {
    FirstFault fault;
    for_each_slice_of(call, [&](const Slice& slice) {
      for (std::size_t i = 0; i < call.frames.size(); ++i) {
        const char* wrong = kernels::blocktopk_validate(
            sections<View>(payload_of(call.frames[i]), call, slice), block_, slice.count);
        if (wrong != nullptr) fault.add(i, slice.segment, wrong);
      }
    });
    fault.check(call.frames.size());
  }

  template <typename Call>
  kernels::BlocktopkInput input_of(const Call& call, const Slice& slice, Views& views) const {
    for (std::size_t i = 0; i < call.frames.size(); ++i)
      views[i] = sections<View>(payload_of(call.frames[i]), call, slice);
    return {block_, views.span(), slice.count};
  }

  BlocktopkOptions options_;
  BlocktopkBlock block_;
};
static_assert(ReducedFrameFormat<BlocktopkCodec>);

}  // namespace

CodecEntry blocktopk_entry() {
  return {{.name = "blocktopk",
           .id = kBlocktopkCodecId,
           .summary = "the largest values of every 4,096 with their places; for use with +ef",
           .keys = {kBlocktopkDensity.help(), kBlocktopkValues.help()}},
          [](const CodecSpec& spec, const CodecInfo& info) -> std::shared_ptr<const Codec> {
            OptionReader reader(spec, info);
            BlocktopkOptions options;
            options.density = reader.read(kBlocktopkDensity);
            options.values = reader.read(kBlocktopkValues);
            return std::make_shared<BlocktopkCodec>(reader.canonical(), options);
          },
          [](const FrameHeader& header) {
            return "density=" + number_text(carried_number(header)) + "," +
                   kBlocktopkValues.text(codec_flags(header));
          }};
}

}  // namespace tersor::encoding
