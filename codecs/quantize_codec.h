// The codecs of the quantising formats (kernels/quantize/formats.h): scales, then codes, for each
// segment.
#pragma once

#include "codecs/options.h"
#include "codecs/registry.h"
#include "codecs/scaled_codec.h"
#include "kernels/quantize/kernels.h"

#include <tersor/codec.h>

#include <cstddef>
#include <span>

namespace tersor::encoding {

template <class Format>
struct QuantizedSections {
  using View = kernels::QuantizedView;
  static constexpr std::size_t kBlock = Format::kBlock;
  static constexpr kernels::Store kLarge = kernels::Store::kStreaming;
  SectionBytes operator()(std::size_t count) const {
    const typename Format::Layout layout{count};
    return {layout.scales_bytes(), layout.codes_offset(), layout.codes_bytes(), layout.bytes()};
  }
};

template <class Format>
class QuantizeCodec final : public ScaledCodec<QuantizeCodec<Format>, QuantizedSections<Format>> {
 public:
  using Base = ScaledCodec<QuantizeCodec<Format>, QuantizedSections<Format>>;
  using typename Base::Target, typename Base::View;

  QuantizeCodec(CodecSpec spec, Rounding rounding)
      : Base(std::move(spec), Format::kId), rounding_(rounding) {}

  PayloadFormat format() const { return {}; }

  void device_encode(const EncodeCall& call, const kernels::DeviceFrame& frame) const {
    kernels::quantize_device_encode<Format>(call, rounding_, frame);
  }
  void device_decode(const DecodeCall& call, const FrameHeader& expected) const {
    kernels::quantize_device_decode<Format>(call, expected);
  }
  void device_reduce(const ReduceCall& call, const kernels::DeviceFrame& frame) const {
    kernels::quantize_device_reduce<Format>(call, rounding_, frame);
  }

  void host_encode(const EncodeCall& call, const FrameHeader& header, ByteSpan frame) const {
    this->encode_pieces(call, header, frame,
                        [&](const ConstValueSpan& gradient, const Target& target) {
                          kernels::quantize_encode<Format>({.gradient = gradient.pointer(),
                                                            .dtype = gradient.dtype(),
                                                            .count = gradient.count(),
                                                            .feedback = target.feedback,
                                                            .noise = noise(call, target),
                                                            .scales = target.scales,
                                                            .codes = target.codes,
                                                            .store = target.store,
                                                            .words = target.sum});
                          return 0;
                        });
  }

  void host_decode(const DecodeCall& call, const FrameHeader& expected) const {
    check_headers(expected, call.frames);
    this->decode_pieces(call, [&](std::span<const View> payloads, const Slice& piece,
                                  const ValueSpan& output, kernels::Store store) {
      kernels::quantize_decode<Format>({.payloads = payloads,
                                        .count = piece.count,
                                        .factor = call.factor,
                                        .mode = call.mode,
                                        .output = output.pointer(),
                                        .dtype = output.dtype(),
                                        .store = store});
    });
  }

  void host_reduce(const ReduceCall& call, const FrameHeader& header, ByteSpan frame) const {
    check_headers(header, call.frames);
    this->reduce_pieces(call, header, frame,
                        [&](std::span<const View> payloads, const Target& target) {
                          kernels::quantize_reduce<Format>({.payloads = payloads,
                                                            .count = target.piece.count,
                                                            .factor = call.factor,
                                                            .feedback = target.feedback,
                                                            .noise = noise(call, target),
                                                            .scales = target.scales,
                                                            .codes = target.codes,
                                                            .store = target.store,
                                                            .words = target.sum});
                          return 0;
                        });
  }

 private:
  template <typename Call>
  kernels::Noise noise(const Call& call, const Target& target) const {
    return noise_of(rounding_, call.random, target.words, target.segment, target.piece.first);
  }

  Rounding rounding_;
};

template <class Format>
CodecEntry quantize_entry() {
  static_assert(ReducedFrameFormat<QuantizeCodec<Format>>);
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
