// hadamard: scales, then planes of bits, for each segment; the step, which the signs depend on,
// travels in the header.

#include "codecs/calls.h"
#include "codecs/device.h"
#include "codecs/frame.h"
#include "codecs/options.h"
#include "codecs/registry.h"
#include "codecs/slices.h"
#include "kernels/hadamard/cpu.h"
#include "kernels/hadamard/device.h"

#include <tersor/codecs/hadamard.h>

#include <atomic>
#include <cstring>

namespace tersor::encoding {
namespace {

constexpr Choice<unsigned, 4> kBitsChoice = {"bits", {{{"1", 1}, {"2", 2}, {"3", 3}, {"4", 4}}}, 1};

class HadamardCodec final : public Codec {
 public:
  using Views = ViewList<kernels::HadamardView>;

  HadamardCodec(CodecSpec spec, HadamardOptions options)
      : Codec(std::move(spec), kHadamardCodecId), bits_(options.bits) {}

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
    FrameHeader head = header(call, dtype_of(call.gradients));
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice)
        return kernels::hadamard_device_encode(call, bits_, device_frame(frame, head));
    const StateWords words = words_of(call);
    const Output output{payload_of(frame), store_for(frame.size() + bytes_of(call.gradients))};
    std::atomic<std::uint64_t> overflows{0};
    for_each_slice(
        call.segments, call.execution.threads, SegmentBytes{bits_},
        [&](const Slice& slice) { overflows += encode_slice(call, words, slice, output); });
    carry_step(head, words.step);
    seal_frame(head, frame, call.execution.threads);
    write_words(words, overflows, call.words_out);
  }

  void do_decode(const DecodeCall& call) const override {
    const FrameHeader expected = header(call, dtype_of(call.outputs));
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice) {
        check_frame_bytes(expected, call.frames);
        return kernels::hadamard_device_decode(call, bits_, expected);
      }
    const std::uint32_t step = checked_step(expected, call);
    const kernels::Store store = store_for(bytes_of(call.frames) + bytes_of(call.outputs));
    for_each_slice(call.segments, call.execution.threads, SegmentBytes{bits_},
                   [&](const Slice& slice) { decode_slice(call, step, slice, store); });
  }

  void do_reduce(const ReduceCall& call, ByteSpan frame) const override {
    FrameHeader head = header(call, call.dtype);
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice) {
        check_frame_bytes(head, call.frames);
        return kernels::hadamard_device_reduce(call, bits_, device_frame(frame, head));
      }
    carry_step(head, checked_step(head, call));
    const StateWords words = words_of(call);
    const Output output{payload_of(frame), store_for(frame.size() + bytes_of(call.frames))};
    std::atomic<std::uint64_t> overflows{0};
    for_each_slice(call.segments, call.execution.threads, SegmentBytes{bits_},
                   [&](const Slice& slice) {
                     overflows += reduce_slice(call, words, carried_step(head), slice, output);
                   });
    seal_frame(head, frame, call.execution.threads);
    write_words(words, overflows, call.words_out);
  }

 private:
  struct Output {
    ByteSpan payload;
    kernels::Store store;
  };

  struct SegmentBytes {
    unsigned bits;
    std::size_t operator()(const Segment& segment) const {
      return HadamardLayout{segment.count, bits}.bytes();
    }
  };

  /// Where a slice's scales and planes lie in a payload.
  template <typename Byte>
  struct Sections {
    Byte* scales;
    Byte* planes;
  };

  template <typename Byte>
  Sections<Byte> sections_of(std::span<Byte> payload, const Segment& segment,
                             const Slice& slice) const {
    const HadamardLayout before{slice.first, bits_};
    Byte* start = payload.data() + slice.offset;
    return {start + before.scales_bytes(),
            start + HadamardLayout{segment.count, bits_}.planes_offset() + before.planes_bytes()};
  }

  std::size_t payload_bytes(std::span<const Segment> segments) const {
    std::size_t bytes = 0;
    for (const Segment& segment : segments) bytes += SegmentBytes{bits_}(segment);
    return bytes;
  }

  /// The header of a frame, but for its step.
  template <typename Call>
  FrameHeader header(const Call& call, Dtype dtype) const {
    PayloadFormat format{.bytes = payload_bytes(call.segments)};
    format.parameters[static_cast<std::size_t>(Carried::kStep)] = static_cast<std::uint8_t>(bits_);
    return frame_header({*this, call.segments, dtype, call.identity}, format);
  }

  /// The step of a call's frames, which are what the call says.
  template <typename Call>
  static std::uint32_t checked_step(const FrameHeader& expected, const Call& call) {
    check_frames(expected, call.frames, call.execution.threads, Carried::kStep);
    return carried_step(read_frame_header(call.frames.front()));
  }

  static kernels::Signs signs_of(const Segment& segment, const Slice& slice, std::uint32_t step) {
    return {step, segment.parameter, segment.first_index + slice.first};
  }

  /// Where a slice is written, its padding included.
  kernels::HadamardOutput output_of(const Output& output, const Segment& segment,
                                    const Slice& slice) const {
    const auto sections = sections_of(output.payload, segment, slice);
    const HadamardLayout layout{segment.count, bits_};
    if (slice.is_last)
      pad_section(output.payload, slice.offset + layout.scales_bytes(),
                  slice.offset + layout.planes_offset());
    return {bits_, reinterpret_cast<std::uint16_t*>(sections.scales), sections.planes,
            output.store};
  }

  std::size_t encode_slice(const EncodeCall& call, const StateWords& words, const Slice& slice,
                           const Output& output) const {
    const Segment& segment = call.segments[slice.segment];
    const kernels::HadamardOutput target = output_of(output, segment, slice);
    const kernels::Feedback feedback = feedback_of(call.states, slice, words);
    if (!is_active(segment)) {
      const HadamardLayout layout{slice.count, bits_};
      std::memset(target.scales, 0, layout.scales_bytes());
      std::memset(target.planes, 0, layout.planes_bytes());
      keep_residual(feedback, slice.count);
      return 0;
    }
    const ConstValueSpan gradient = call.gradients[slice.segment].subspan(slice.first, slice.count);
    return kernels::hadamard_encode({.gradient = gradient.pointer(),
                                     .dtype = gradient.dtype(),
                                     .count = slice.count,
                                     .feedback = feedback,
                                     .signs = signs_of(segment, slice, words.step),
                                     .output = target});
  }

  template <typename Call>
  void view_slice(const Call& call, const Slice& slice, Views& views) const {
    for (std::size_t i = 0; i < call.frames.size(); ++i) {
      const auto sections =
          sections_of(payload_of(call.frames[i]), call.segments[slice.segment], slice);
      views[i] = {reinterpret_cast<const std::uint16_t*>(sections.scales), sections.planes};
    }
  }

  void decode_slice(const DecodeCall& call, std::uint32_t step, const Slice& slice,
                    kernels::Store store) const {
    Views views(call.frames.size(), call.execution.workspace, slice.task);
    view_slice(call, slice, views);
    const ValueSpan output = call.outputs[slice.segment].subspan(slice.first, slice.count);
    const kernels::Signs signs = signs_of(call.segments[slice.segment], slice, step);
    kernels::hadamard_decode({.input = {bits_, views.span(), slice.count, signs},
                              .factor = call.factor,
                              .mode = call.mode,
                              .output = output.pointer(),
                              .dtype = output.dtype(),
                              .store = store});
  }

  std::size_t reduce_slice(const ReduceCall& call, const StateWords& words, std::uint32_t step,
                           const Slice& slice, const Output& output) const {
    Views views(call.frames.size(), call.execution.workspace, slice.task);
    view_slice(call, slice, views);
    const Segment& segment = call.segments[slice.segment];
    return kernels::hadamard_reduce(
        {.input = {bits_, views.span(), slice.count, signs_of(segment, slice, step)},
         .feedback = feedback_of(call.states, slice, words),
         .output = output_of(output, segment, slice)});
  }

  unsigned bits_;
};

}  // namespace

CodecEntry hadamard_entry() {
  return {{.name = "hadamard",
           .id = kHadamardCodecId,
           .summary = "one to four bits a value, turned to look normally distributed",
           .keys = {kBitsChoice.help()}},
          [](const CodecSpec& spec, const CodecInfo& info) -> std::shared_ptr<const Codec> {
            OptionReader reader(spec, info);
            const HadamardOptions options{reader.read(kBitsChoice)};
            return std::make_shared<HadamardCodec>(reader.canonical(), options);
          }};
}

}  // namespace tersor::encoding
