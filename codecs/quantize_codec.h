// The codecs of the quantising formats (kernels/quantize/formats.h): scales, then codes, for each
// segment.
#pragma once

#include "codecs/registry.h"
#include "codecs/sliced_codec.h"
#include "kernels/quantize/kernels.h"

#include <tersor/codec.h>

#include <cstddef>

namespace tersor::encoding {

template <class Format>
class QuantizeCodec final : public SlicedCodec<QuantizeCodec<Format>, kernels::QuantizedView, 2> {
 public:
  using Base = SlicedCodec<QuantizeCodec<Format>, kernels::QuantizedView, 2>;
  using typename Base::Sections, typename Base::Source, typename Base::Target;

  static constexpr kernels::Store kLarge = kernels::Store::kStreaming;

  QuantizeCodec(CodecSpec spec, Rounding rounding)
      : Base(std::move(spec), Format::kId), rounding_(rounding) {}

  static Rounding read(OptionReader& reader) { return reader.read(kRoundingChoice); }

  CodecTraits traits() const override { return {.block = Format::kBlock}; }
  PayloadFormat format() const { return {}; }
  Sections sections(std::size_t count, Dtype) const {
    const typename Format::Layout layout{count};
    return {layout.scales_bytes(), layout.codes_bytes()};
  }

  void device_encode(const EncodeCall& call, const kernels::DeviceFrame& frame) const {
    kernels::quantize_device_encode<Format>(call, rounding_, frame);
  }
  void device_decode(const DecodeCall& call, const FrameHeader& expected) const {
    kernels::quantize_device_decode<Format>(call, expected);
  }
  void device_reduce(const ReduceCall& call, const kernels::DeviceFrame& frame) const {
    kernels::quantize_device_reduce<Format>(call, rounding_, frame);
  }

  std::size_t encode_piece(const EncodeCall& call, const FrameHeader&, const kernels::Sent& sent,
                           const Target& to) const {
    kernels::quantize_loops<Format>().encode({sent, noise(call, to), output_of(to)});
    return 0;
  }

  void decode_piece(const FrameHeader&, const Source& from, const kernels::Decoded& to) const {
    kernels::quantize_loops<Format>().decode({from.payloads, from.piece.count, to});
  }

  std::size_t reduce_piece(const ReduceCall& call, const FrameHeader&, const Source& from,
                           const Target& to) const {
    kernels::quantize_loops<Format>().reduce({.payloads = from.payloads,
                                              .count = from.piece.count,
                                              .factor = call.factor,
                                              .feedback = to.feedback,
                                              .noise = noise(call, to),
                                              .output = output_of(to)});
    return 0;
  }

 private:
  template <typename Call>
  kernels::Noise noise(const Call& call, const Target& to) const {
    return noise_of(rounding_, call.random, to.words, to.segment, to.piece.first);
  }

  static kernels::QuantizeOutput output_of(const Target& to) {
    return {to.sections[0], to.sections[1], to.store, to.sum};
  }

  Rounding rounding_;
};

template <class Format>
CodecEntry quantize_entry() {
  static_assert(SlicedFormat<QuantizeCodec<Format>>);
  return entry_of<QuantizeCodec<Format>>({.name = Format::kName,
                                          .id = Format::kId,
                                          .summary = Format::kSummary,
                                          .options = {kRoundingChoice.option()}});
}

}  // namespace tersor::encoding
