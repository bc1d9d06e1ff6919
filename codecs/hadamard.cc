// hadamard: scales, then bit planes, for each segment. The signs depend on the step, which is sent
// in the header.

#include "codecs/registry.h"
#include "codecs/sliced_codec.h"
#include "kernels/hadamard/cpu.h"
#include "kernels/hadamard/device.h"

#include <tersor/codecs/hadamard.h>

namespace tersor::encoding {
namespace {

constexpr Choice<unsigned, 4> kBitsChoice = {"bits", {{{"1", 1}, {"2", 2}, {"3", 3}, {"4", 4}}}, 1};

class HadamardCodec final : public SlicedCodec<HadamardCodec, kernels::HadamardView, 2> {
 public:
  static constexpr HeaderExtra kHeaderExtra = HeaderExtra::kStep;

  HadamardCodec(CodecSpec spec, HadamardOptions options)
      : SlicedCodec(std::move(spec), kHadamardCodecId), bits_(options.bits) {}

  static HadamardOptions read(OptionReader& reader) { return {reader.read(kBitsChoice)}; }

  CodecTraits traits() const override { return {.block = HadamardLayout::kBlock}; }

  /// The step of a frame is missing here.
  PayloadFormat format() const {
    PayloadFormat format;
    format.parameters[static_cast<std::size_t>(HeaderExtra::kStep)] =
        static_cast<std::uint8_t>(bits_);
    return format;
  }
  Sections sections(std::size_t count, Dtype) const {
    const HadamardLayout layout{count, bits_};
    return {layout.scales_bytes(), layout.planes_bytes()};
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

  std::size_t encode_piece(const EncodeCall&, const FrameHeader& header,
                           const kernels::EncodeInput& sent, const Target& to) const {
    return kernels::hadamard_encode({sent, signs_of(to, header), output_of(to)});
  }

  void decode_piece(const FrameHeader& header, const Source& from,
                    const kernels::DecodeOutput& to) const {
    kernels::hadamard_decode({input_of(from, header), to});
  }

  std::size_t reduce_piece(const ReduceCall& call, const FrameHeader& header, const Source& from,
                           const Target& to) const {
    return kernels::hadamard_reduce({.input = input_of(from, header),
                                     .factor = call.factor,
                                     .feedback = to.feedback,
                                     .output = output_of(to)});
  }

 private:
  /// `at` is a Source or a Target.
  template <typename Piece>
  static kernels::Signs signs_of(const Piece& at, const FrameHeader& header) {
    return {step_in_header(header), at.segment.parameter, at.segment.first_index + at.piece.first};
  }

  kernels::HadamardInput input_of(const Source& from, const FrameHeader& header) const {
    return {bits_, from.payloads, from.piece.count, signs_of(from, header)};
  }

  kernels::HadamardOutput output_of(const Target& to) const {
    return {bits_, to.sections[0], to.sections[1]};
  }

  unsigned bits_;
};
static_assert(SlicedFormat<HadamardCodec>);

}  // namespace

CodecEntry hadamard_entry() {
  return entry_of<HadamardCodec>(
      {.name = "hadamard",
       .id = kHadamardCodecId,
       .summary = "one to four bits per value, after a random rotation of each block",
       .options = {kBitsChoice.option()}},
      [](const FrameHeader& header) {
        return kBitsChoice.text(header.parameters[static_cast<std::size_t>(HeaderExtra::kStep)]);
      });
}

}  // namespace tersor::encoding
