// blocktopk: the largest values of each block with indices. Sizes, sections and checks for
// kernels/blocktopk.

#include "codecs/first_fault.h"
#include "codecs/registry.h"
#include "codecs/sliced_codec.h"
#include "kernels/blocktopk/cpu.h"
#include "kernels/blocktopk/device.h"

#include <tersor/codecs/blocktopk.h>

#include <limits>

namespace tersor::encoding {
namespace {

constexpr Number kBlocktopkDensity = {.key = "density", .above = 0, .most = 0.25, .standard = 0.01};
constexpr Choice<BlocktopkValues, 3> kBlocktopkValues = {"values",
                                                         {{{"sign", BlocktopkValues::kSign},
                                                           {"int4", BlocktopkValues::kInt4},
                                                           {"bf16", BlocktopkValues::kBf16}}}};

class BlocktopkCodec final : public SlicedCodec<BlocktopkCodec, kernels::BlocktopkView, 4> {
 public:
  BlocktopkCodec(CodecSpec spec, BlocktopkOptions options)
      : SlicedCodec(std::move(spec), kBlocktopkCodecId), options_(options), block_(options) {}

  static BlocktopkOptions read(OptionReader& reader) {
    return {.density = reader.read(kBlocktopkDensity), .values = reader.read(kBlocktopkValues)};
  }

  CodecTraits traits() const override {
    return {.unit = BlocktopkBlock::kValues, .block = BlocktopkBlock::kValues};
  }

  PayloadFormat format() const {
    return format_of_number(options_.density, static_cast<unsigned>(options_.values));
  }
  Sections sections(std::size_t count, Dtype) const {
    const std::size_t bytes = BlocktopkLayout{count, block_}.blocks() * sizeof(std::uint32_t);
    return {bytes * block_.scale_words(), bytes * block_.high_words(), bytes * block_.low_words(),
            bytes * block_.value_words()};
  }
  /// Payloads are short enough to fit into the caches as a whole.
  static std::size_t piece_count(Dtype) { return std::numeric_limits<std::size_t>::max(); }

  void device_encode(const EncodeCall& call, const kernels::DeviceFrame& frame) const {
    kernels::blocktopk_device_encode(call, block_, frame);
  }
  void device_decode(const DecodeCall& call, const FrameHeader& expected) const {
    kernels::blocktopk_device_decode(call, block_, expected);
  }
  void device_reduce(const ReduceCall& call, const kernels::DeviceFrame& frame) const {
    kernels::blocktopk_device_reduce(call, block_, frame);
  }

  std::size_t encode_piece(const EncodeCall&, const FrameHeader&, const kernels::EncodeInput& sent,
                           const Target& to) const {
    return kernels::blocktopk_encode({sent, block_, output_of(to)});
  }

  void decode_piece(const FrameHeader&, const Source& from, const kernels::DecodeOutput& to) const {
    kernels::blocktopk_decode({input_of(from), to});
  }

  std::size_t reduce_piece(const ReduceCall& call, const FrameHeader&, const Source& from,
                           const Target& to) const {
    return kernels::blocktopk_reduce({.input = input_of(from),
                                      .factor = call.factor,
                                      .feedback = to.feedback,
                                      .output = output_of(to)});
  }

  /// Lists come from other ranks. Every index must lie inside the block.
  template <typename Call>
  void check_indices_of(const Call& call) const {
    FirstFault fault;
    for_each_slice_of(call, [&](const Slice& slice) {
      const Parts parts = parts_of(call, slice);
      for (std::size_t i = 0; i < call.frames.size(); ++i) {
        const char* wrong =
            kernels::blocktopk_validate(view_of(call.frames[i], parts), block_, slice.count);
        if (wrong != nullptr) fault.add(i, slice.segment, wrong);
      }
    });
    fault.check(call.frames.size());
  }

 private:
  kernels::BlocktopkInput input_of(const Source& from) const {
    return {block_, from.payloads, from.piece.count};
  }

  static kernels::BlocktopkPayload output_of(const Target& to) {
    return {to.sections[0], to.sections[1], to.sections[2], to.sections[3]};
  }

  BlocktopkOptions options_;
  BlocktopkBlock block_;
};
static_assert(SlicedFormat<BlocktopkCodec>);

}  // namespace

CodecEntry blocktopk_entry() {
  return entry_of<BlocktopkCodec>(
      {.name = "blocktopk",
       .id = kBlocktopkCodecId,
       .summary = "the largest values of each block of 4,096, with indices; use with +ef",
       .options = {kBlocktopkDensity.option(), kBlocktopkValues.option()}},
      [](const FrameHeader& header) {
        return "density=" + number_text(number_in_header(header)) + "," +
               kBlocktopkValues.text(codec_flags(header));
      });
}

}  // namespace tersor::encoding
