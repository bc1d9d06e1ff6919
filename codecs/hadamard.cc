// hadamard: scales, then planes of bits, for each segment; the step, which the signs depend on,
// travels in the header.

#include "codecs/options.h"
#include "codecs/registry.h"
#include "codecs/scaled_codec.h"
#include "kernels/hadamard/cpu.h"
#include "kernels/hadamard/device.h"

#include <tersor/codecs/hadamard.h>

namespace tersor::encoding {
namespace {

constexpr Choice<unsigned, 4> kBitsChoice = {"bits", {{{"1", 1}, {"2", 2}, {"3", 3}, {"4", 4}}}, 1};

struct HadamardSections {
  using View = kernels::HadamardView;
  static constexpr kernels::Store kLarge = kernels::Store::kCached;
  static constexpr std::size_t kBlock = HadamardLayout::kBlock;
  SectionBytes operator()(std::size_t count) const {
    const HadamardLayout layout{count, bits};
    return {layout.scales_bytes(), layout.planes_offset(), layout.planes_bytes(), layout.bytes()};
  }

  unsigned bits;
};

class HadamardCodec final : public ScaledCodec<HadamardCodec, HadamardSections> {
 public:
  HadamardCodec(CodecSpec spec, HadamardOptions options)
      : ScaledCodec(std::move(spec), kHadamardCodecId, {options.bits}), bits_(options.bits) {}

  /// But for the step of a frame.
  PayloadFormat format() const {
    PayloadFormat format;
    format.parameters[static_cast<std::size_t>(Carried::kStep)] = static_cast<std::uint8_t>(bits_);
    return format;
  }

  void device_encode(const EncodeCall& call, const kernels::DeviceFrame& frame) const {
    kernels::hadamard_device_encode(call, bits_, frame);
  }
  void device_decode(const DecodeCall& call, const FrameHeader& expected) const {
    kernels::hadamard_device_decode(call, bits_, expected);
  }
  void device_reduce(const ReduceCall& call, const kernels::DeviceFrame& frame) const {
    kernels::hadamard_device_reduce(call, bits_, frame);
  }

  void host_encode(const EncodeCall& call, FrameHeader head, ByteSpan frame) const {
    carry_step(head, words_of(call).step);
    encode_pieces(call, head, frame, [&](const ConstValueSpan& gradient, const Target& target) {
      return kernels::hadamard_encode(
          {.gradient = gradient.pointer(),
           .dtype = gradient.dtype(),
           .count = gradient.count(),
           .feedback = target.feedback,
           .signs = signs_of(target.segment, target.piece, carried_step(head)),
           .output = {bits_, target.scales, target.codes}});
    });
  }

  void host_decode(const DecodeCall& call, const FrameHeader& expected) const {
    const std::uint32_t step = checked_step(expected, call);
    decode_pieces(call, [&](std::span<const View> payloads, const Slice& piece,
                            const ValueSpan& output, kernels::Store store) {
      const kernels::Signs signs = signs_of(call.segments[piece.segment], piece, step);
      kernels::hadamard_decode({.input = {bits_, payloads, piece.count, signs},
                                .factor = call.factor,
                                .mode = call.mode,
                                .output = output.pointer(),
                                .dtype = output.dtype(),
                                .store = store});
    });
  }

  void host_reduce(const ReduceCall& call, FrameHeader head, ByteSpan frame) const {
    carry_step(head, checked_step(head, call));
    reduce_pieces(call, head, frame, [&](std::span<const View> payloads, const Target& target) {
      const kernels::Signs signs = signs_of(target.segment, target.piece, carried_step(head));
      return kernels::hadamard_reduce({.input = {bits_, payloads, target.piece.count, signs},
                                       .factor = call.factor,
                                       .feedback = target.feedback,
                                       .output = {bits_, target.scales, target.codes}});
    });
  }

 private:
  /// The step of a call's frames, which are what the call says.
  template <typename Call>
  static std::uint32_t checked_step(const FrameHeader& expected, const Call& call) {
    check_headers(expected, call.frames, Carried::kStep);
    return carried_step(read_frame_header(call.frames.front()));
  }

  static kernels::Signs signs_of(const Segment& segment, const Slice& slice, std::uint32_t step) {
    return {step, segment.parameter, segment.first_index + slice.first};
  }

  unsigned bits_;
};
static_assert(ReducedFrameFormat<HadamardCodec>);

}  // namespace

CodecEntry hadamard_entry() {
  return {{.name = "hadamard",
           .id = kHadamardCodecId,
           .summary = "one to four bits a value, rotated to look normally distributed",
           .keys = {kBitsChoice.help()}},
          [](const CodecSpec& spec, const CodecInfo& info) -> std::shared_ptr<const Codec> {
            OptionReader reader(spec, info);
            const HadamardOptions options{reader.read(kBitsChoice)};
            return std::make_shared<HadamardCodec>(reader.canonical(), options);
          },
          [](const FrameHeader& header) {
            return kBitsChoice.text(header.parameters[static_cast<std::size_t>(Carried::kStep)]);
          }};
}

}  // namespace tersor::encoding
