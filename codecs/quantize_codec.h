// The codecs of the quantising formats (kernels/quantize/formats.h): scales, then codes, for each
// segment.
#pragma once

#include "codecs/code_sections.h"
#include "codecs/registry.h"
#include "codecs/sliced_codec.h"
#include "kernels/quantize/formulas.h"
#include "kernels/quantize/kernels.h"

#include <tersor/codec.h>

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace tersor::encoding {

/// The codes of mxfp8. A codec flag in a frame's header holds the number.
inline constexpr Choice<unsigned, 2> kElementsChoice = {"elements", {{{"e4m3", 0}, {"e5m2", 1}}}};

/// Formats with codes for other programs.
template <class Format>
constexpr bool kHasCodes = sizeof(typename Format::Scale::Stored) == 1;
struct NoCodes {};

template <class Format>
constexpr std::size_t kQuantizeSections = kernels::kHasSegmentScale<Format> ? 3 : 2;

template <class Format>
class QuantizeCodec final
    : public SlicedCodec<QuantizeCodec<Format>, kernels::QuantizedView, kQuantizeSections<Format>>,
      public std::conditional_t<kHasCodes<Format>, CodeSource, NoCodes> {
 public:
  using Base =
      SlicedCodec<QuantizeCodec<Format>, kernels::QuantizedView, kQuantizeSections<Format>>;
  using typename Base::Sections, typename Base::Source, typename Base::Target;

  static constexpr kernels::Store kLargeStore = kernels::Store::kStreaming;
  static constexpr bool kMeasures = kernels::kHasSegmentScale<Format>;
  static constexpr std::size_t kCutMultiple = Format::kBlock;

  QuantizeCodec(CodecSpec spec, Rounding rounding)
      : Base(std::move(spec), Format::kId), rounding_(rounding) {}

  static Rounding read(OptionReader& reader) {
    return Format::kStochastic ? reader.read(kRoundingChoice) : Rounding::kNearest;
  }

  CodecTraits traits() const override {
    return {.divisible = !kMeasures, .block = kMeasures ? 0 : Format::kBlock};
  }
  PayloadFormat format() const {
    PayloadFormat format;
    if constexpr (requires { Format::kElements; })
      format.codec_flags = Format::kElements << kCodecFlagShift;
    return format;
  }
  Sections sections(std::size_t count, Dtype) const {
    const typename Format::Layout layout{count};
    if constexpr (kMeasures)
      return {count == 0 ? 0 : layout.kFirst, layout.scales_bytes(), layout.codes_bytes()};
    else
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

  std::vector<CodeSections> code_sections(std::span<const Segment> segments) const {
    std::vector<CodeSections> all;
    std::size_t offset = sizeof(FrameHeader);
    for (const Segment& segment : segments) {
      const typename Format::Layout layout{segment.count};
      all.push_back({.largest = kMeasures && segment.count != 0 ? offset : 0,
                     .scales = offset + layout.scales_offset(),
                     .scales_bytes = layout.scales_bytes(),
                     .codes = offset + layout.codes_offset(),
                     .codes_bytes = layout.codes_bytes()});
      offset += layout.bytes();
    }
    return all;
  }
  FrameHeader code_header(std::span<const Segment> segments, Dtype dtype,
                          const FrameIdentity& identity) const {
    return this->header_of(
        ReduceCall{.segments = segments, .dtype = dtype, .frames = {}, .identity = identity});
  }

  std::size_t encode_piece(const EncodeCall& call, const FrameHeader&,
                           const kernels::EncodeInput& sent, const Target& to) const {
    kernels::quantize_loops<Format>().encode({sent, noise(call, to), output_of(to)});
    return 0;
  }

  void decode_piece(const FrameHeader&, const Source& from, const kernels::DecodeOutput& to) const {
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

  std::uint32_t largest_sent(const kernels::EncodeInput& sent) const {
    return kernels::quantize_loops<Format>().largest_sent(sent);
  }
  std::uint32_t largest_sum(const ReduceCall& call, const Source& from,
                            const kernels::ErrorFeedback& feedback) const {
    return kernels::quantize_loops<Format>().largest_sum({.payloads = from.payloads,
                                                          .count = from.piece.count,
                                                          .factor = call.factor,
                                                          .feedback = feedback,
                                                          .noise = {},
                                                          .output = {}});
  }

 private:
  template <typename Call>
  kernels::Noise noise(const Call& call, const Target& to) const {
    return noise_of(rounding_, call.random, to.words, to.segment, to.piece.first);
  }

  static kernels::QuantizeOutput output_of(const Target& to) {
    constexpr std::size_t kScales = kQuantizeSections<Format> - 2;
    return {to.sections[kScales], to.sections[kScales + 1], to.store, to.sum,
            kMeasures ? to.sections[0].bytes : nullptr};
  }

  Rounding rounding_;
};

/// A format names a second format with the same layout as OtherElements, chosen by an option.
template <class Format>
CodecEntry quantize_entry() {
  static_assert(SlicedFormat<QuantizeCodec<Format>>);
  CodecInfo info{
      .name = Format::kName, .id = Format::kId, .summary = Format::kSummary, .options = {}};
  if constexpr (requires { typename Format::OtherElements; }) {
    info.options = {kElementsChoice.option()};
    const auto make = [](const CodecSpec& spec,
                         const CodecInfo& own) -> std::shared_ptr<const Codec> {
      OptionReader reader(spec, own);
      if (reader.read(kElementsChoice) == Format::kElements)
        return std::make_shared<QuantizeCodec<Format>>(reader.canonical(), Rounding::kNearest);
      return std::make_shared<QuantizeCodec<typename Format::OtherElements>>(reader.canonical(),
                                                                             Rounding::kNearest);
    };
    return {std::move(info), make,
            [](const FrameHeader& header) { return kElementsChoice.text(codec_flags(header)); }};
  } else {
    if (Format::kStochastic) info.options = {kRoundingChoice.option()};
    return entry_of<QuantizeCodec<Format>>(std::move(info));
  }
}

}  // namespace tersor::encoding
