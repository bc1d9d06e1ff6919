// hadamard: scales, then planes of bits, for each segment; the step, which the signs depend on,
// travels in the header.

#include "codecs/calls.h"
#include "codecs/device.h"
#include "codecs/frame.h"
#include "codecs/options.h"
#include "codecs/registry.h"
#include "codecs/slices.h"
#include "codecs/sums.h"
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
            : FrameSums::workspace_bytes(request.contributions) +
                  Views::workspace_bytes(request.contributions, request.threads);
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
    PayloadWriter output(call, frame, bytes_of(call.gradients));
    std::atomic<std::uint64_t> overflows{0};
    for_each_piece_of(call, output.has_checksum, [&](const Slice& piece) {
      overflows += encode_piece(call, words, piece, output);
    });
    carry_step(head, words.step);
    seal_frame(head, frame, output.sum);
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
    FrameSums sums(call);
    for_each_piece_of(call, sums.is_on(), [&](const Slice& piece) {
      add_to_sums(call, piece, sums);
      decode_piece(call, step, piece, store);
    });
    sums.check([&] { poison(call.outputs); });
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
    FrameSums sums(call);
    PayloadWriter output(call, frame, bytes_of(call.frames));
    std::atomic<std::uint64_t> overflows{0};
    for_each_piece_of(call, sums.is_on(), [&](const Slice& piece) {
      add_to_sums(call, piece, sums);
      overflows += reduce_piece(call, words, carried_step(head), piece, output);
    });
    sums.check([&] { poison(call.states); });
    seal_frame(head, frame, output.sum);
    write_words(words, overflows, call.words_out);
  }

 private:
  static constexpr std::size_t kPieceCount = kPieceBytes;  // values: half as many bytes, or less

  struct SegmentBytes {
    unsigned bits;
    std::size_t operator()(const Segment& segment) const {
      return HadamardLayout{segment.count, bits}.bytes();
    }
  };

  /// Where a slice's sections lie in a payload, in bytes, with the padding behind a segment's
  /// scales. Planes have none.
  struct Range {
    std::size_t scales, scales_end, planes, planes_end;
  };

  Range range_of(const Segment& segment, const Slice& slice) const {
    const HadamardLayout layout{segment.count, bits_}, before{slice.first, bits_};
    const HadamardLayout here{slice.count, bits_};
    const std::size_t scales = slice.offset + before.scales_bytes();
    const std::size_t planes = slice.offset + layout.planes_offset();
    const std::size_t first_plane = planes + before.planes_bytes();
    return {scales, slice.is_last ? planes : scales + here.scales_bytes(), first_plane,
            first_plane + here.planes_bytes()};
  }

  template <typename Call>
  void add_to_sums(const Call& call, const Slice& slice, FrameSums& sums) const {
    const Range range = range_of(call.segments[slice.segment], slice);
    sums.add(range.scales, range.scales_end);
    sums.add(range.planes, range.planes_end);
  }

  template <typename Call, typename Visitor>
  void for_each_piece_of(const Call& call, bool cut, const Visitor& visit) const {
    for_each_slice(
        call.segments, call.execution.threads, SegmentBytes{bits_},
        [&](const Slice& slice) { for_each_piece(slice, cut ? kPieceCount : slice.count, visit); });
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
    check_headers(expected, call.frames, Carried::kStep);
    return carried_step(read_frame_header(call.frames.front()));
  }

  static kernels::Signs signs_of(const Segment& segment, const Slice& slice, std::uint32_t step) {
    return {step, segment.parameter, segment.first_index + slice.first};
  }

  /// Has write(output) write the sections of a piece; sums them and the padding.
  template <typename Write>
  void write_piece(const Segment& segment, const Slice& piece, PayloadWriter& output,
                   const Write& write) const {
    const Range range = range_of(segment, piece);
    std::byte* scales = output.payload.data() + range.scales;
    write(kernels::HadamardOutput{bits_, reinterpret_cast<std::uint16_t*>(scales),
                                  output.payload.data() + range.planes});
    pad_section(output.payload, range.scales + HadamardLayout{piece.count, bits_}.scales_bytes(),
                range.scales_end);
    output.add(range.scales, range.scales_end);
    output.add(range.planes, range.planes_end);
  }

  std::size_t encode_piece(const EncodeCall& call, const StateWords& words, const Slice& piece,
                           PayloadWriter& output) const {
    const Segment& segment = call.segments[piece.segment];
    const kernels::Feedback feedback = feedback_of(call.states, piece, words, output.store);
    const ConstValueSpan gradient = call.gradients[piece.segment].subspan(piece.first, piece.count);
    std::size_t overflows = 0;
    write_piece(segment, piece, output, [&](const kernels::HadamardOutput& target) {
      if (!is_active(segment)) {
        const HadamardLayout layout{piece.count, bits_};
        std::memset(target.scales, 0, layout.scales_bytes());
        std::memset(target.planes, 0, layout.planes_bytes());
        return keep_residual(feedback, piece.count);
      }
      overflows = kernels::hadamard_encode({.gradient = gradient.pointer(),
                                            .dtype = gradient.dtype(),
                                            .count = piece.count,
                                            .feedback = feedback,
                                            .signs = signs_of(segment, piece, words.step),
                                            .output = target});
    });
    return overflows;
  }

  /// Behind that of the sums.
  template <typename Call>
  static ByteSpan views_workspace(const Call& call) {
    return call.execution.workspace.subspan(FrameSums::workspace_bytes(call.frames.size()));
  }

  template <typename Call>
  void view_piece(const Call& call, const Slice& piece, Views& views) const {
    const Range range = range_of(call.segments[piece.segment], piece);
    for (std::size_t i = 0; i < call.frames.size(); ++i) {
      const std::byte* payload = payload_of(call.frames[i]).data();
      views[i] = {reinterpret_cast<const std::uint16_t*>(payload + range.scales),
                  payload + range.planes};
    }
  }

  void decode_piece(const DecodeCall& call, std::uint32_t step, const Slice& piece,
                    kernels::Store store) const {
    Views views(call.frames.size(), views_workspace(call), piece.task);
    view_piece(call, piece, views);
    const ValueSpan output = call.outputs[piece.segment].subspan(piece.first, piece.count);
    const kernels::Signs signs = signs_of(call.segments[piece.segment], piece, step);
    kernels::hadamard_decode({.input = {bits_, views.span(), piece.count, signs},
                              .factor = call.factor,
                              .mode = call.mode,
                              .output = output.pointer(),
                              .dtype = output.dtype(),
                              .store = store});
  }

  std::size_t reduce_piece(const ReduceCall& call, const StateWords& words, std::uint32_t step,
                           const Slice& piece, PayloadWriter& output) const {
    Views views(call.frames.size(), views_workspace(call), piece.task);
    view_piece(call, piece, views);
    const Segment& segment = call.segments[piece.segment];
    std::size_t overflows = 0;
    write_piece(segment, piece, output, [&](const kernels::HadamardOutput& target) {
      overflows = kernels::hadamard_reduce(
          {.input = {bits_, views.span(), piece.count, signs_of(segment, piece, step)},
           .feedback = feedback_of(call.states, piece, words, output.store),
           .output = target});
    });
    return overflows;
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
