// The codecs of the cast formats (kernels/cast/formats.h). Payloads are values, sent in frames or
// raw. A transport can add raw values.
#pragma once

#include "codecs/registry.h"
#include "codecs/sliced_codec.h"
#include "kernels/cast/formats.h"
#include "kernels/cast/kernels.h"

#include <tersor/codecs/none.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace tersor::encoding {

template <class Format>
class CastCodec final : public SlicedCodec<CastCodec<Format>, const void*, 1> {
 public:
  using Base = SlicedCodec<CastCodec<Format>, const void*, 1>;
  using typename Base::Sections, typename Base::Source, typename Base::Target;

  static constexpr kernels::Store kLargeStore = kernels::Store::kStreaming;

  CastCodec(CodecSpec spec, Rounding rounding)
      : Base(std::move(spec), Format::kId), rounding_(rounding) {}

  static Rounding read(OptionReader& reader) {
    return Format::kHasRounding ? reader.read(kRoundingChoice) : Rounding::kNearest;
  }

  CodecTraits traits() const override {
    return {.lossless = Format::kLossless && !this->has_feedback(), .block = 1};
  }

  PayloadFormat format() const { return {}; }
  Sections sections(std::size_t count, Dtype dtype) const {
    return {ValuesLayout{count, wire_dtype(dtype)}.values_bytes()};
  }
  static std::size_t piece_count(Dtype dtype) {
    return kPieceBytes / dtype_bytes(wire_dtype(dtype));
  }
  RawValues raw_values(std::span<const Segment> segments, Dtype dtype, unsigned) const {
    return {raw_dtype(dtype), values_of(segments)};
  }
  void check_raw_sent() const {
    if (this->has_feedback())
      throw_unsupported(*this, "has no native exchange: raw values have no error feedback");
    if (rounding_ != Rounding::kNearest)
      throw_unsupported(*this, "has no native exchange: a transport rounds its sums to nearest");
  }

  void device_encode(const EncodeCall& call, const kernels::DeviceFrame& frame) const {
    kernels::cast_device_encode<Format>(call, rounding_, frame);
  }
  void device_decode(const DecodeCall& call, const FrameHeader& expected) const {
    kernels::cast_device_decode<Format>(call, expected);
  }
  void device_reduce(const ReduceCall& call, const kernels::DeviceFrame& frame) const {
    kernels::cast_device_reduce<Format>(call, rounding_, frame);
  }
  void device_encode_raw(const EncodeCall& call, float factor, ValueSpan values) const {
    kernels::cast_device_encode_native<Format>(call, factor, values);
  }
  void device_decode_raw(const DecodeCall& call, ConstValueSpan values) const {
    kernels::cast_device_decode_native<Format>(call, values);
  }

  std::size_t encode_piece(const EncodeCall& call, const FrameHeader&,
                           const kernels::EncodeInput& sent, const Target& to) const {
    return kernels::cast_loops<Format>().encode(
        {.sent = sent, .output = output_of(to), .noise = noise(call, to)});
  }

  void decode_piece(const FrameHeader&, const Source& from, const kernels::DecodeOutput& to) const {
    kernels::cast_loops<Format>().decode({from.payloads, from.piece.count, to});
  }

  std::size_t reduce_piece(const ReduceCall& call, const FrameHeader&, const Source& from,
                           const Target& to) const {
    return kernels::cast_loops<Format>().reduce({.payloads = from.payloads,
                                                 .dtype = call.dtype,
                                                 .count = from.piece.count,
                                                 .factor = call.factor,
                                                 .feedback = to.feedback,
                                                 .output = output_of(to),
                                                 .noise = noise(call, to)});
  }

  std::size_t host_encode_raw(const EncodeCall& call, float factor, ValueSpan values) const {
    const kernels::Store store = store_for(values.bytes() + bytes_of(call.gradients));
    std::atomic<std::uint64_t> overflows{0};
    for_each_raw(call, values, [&](const Slice& slice, std::byte* raw) {
      const kernels::EncodeInput sent = sent_of(call, slice, {}, store);
      if (!is_active(call.segments[slice.segment]))
        std::memset(raw, 0, slice.count * dtype_bytes(values.dtype()));
      else if (!Format::kLossless || sent.gradient != raw || factor != 1)
        overflows +=
            kernels::cast_loops<Format>().encode({.sent = sent,
                                                  .output = {.values = raw, .store = store},
                                                  .wire_form = kernels::WireForm::kRaw,
                                                  .factor = factor});
    });
    return overflows;
  }

  void host_decode_raw(const DecodeCall& call, ConstValueSpan values) const {
    const kernels::Store store = store_for(values.bytes() + bytes_of(call.outputs));
    for_each_raw(call, values, [&](const Slice& slice, const void* raw) {
      kernels::cast_loops<Format>().decode({.payloads = {&raw, 1},
                                            .count = slice.count,
                                            .to = decoded_of(call, slice, store),
                                            .wire_form = kernels::WireForm::kRaw});
    });
  }

 protected:
  std::vector<Round> plan_rounds(const PlanRequest& request) const override {
    Round round{.exchanges = {Exchange::kTwoShot, Exchange::kGather},
                .native_dtype = raw_dtype(request.dtype),
                .native_count = values_of(request.segments)};
    const bool is_wire_type = round.native_dtype == wire_dtype(request.dtype);
    if (!this->has_feedback() && rounding_ == Rounding::kNearest)
      round.exchanges.insert(is_wire_type ? round.exchanges.begin() : round.exchanges.end(),
                             Exchange::kNativeSum);
    return {round};
  }

 private:
  static Dtype wire_dtype(Dtype gradient) {
    return visit_gradient_dtype(
        gradient, []<typename G>(G) { return DtypeOf<typename Format::template Wire<G>>::value; });
  }

  static Dtype raw_dtype(Dtype gradient) {
    return visit_gradient_dtype(
        gradient, []<typename G>(G) { return DtypeOf<kernels::Raw<Format, G>>::value; });
  }

  /// Calls visit(slice, pointer to the slice's raw values). Segments are stored consecutively
  /// without padding.
  template <typename Call, typename Values, typename Visitor>
  static void for_each_raw(const Call& call, const Values& values, const Visitor& visit) {
    const std::size_t bytes = dtype_bytes(values.dtype());
    for_each_slice(
        call.segments, call.execution.threads, [](const Segment& segment) { return segment.count; },
        [&](const Slice& slice) {
          visit(slice, values.pointer() + (slice.offset + slice.first) * bytes);
        });
  }

  template <typename Call>
  kernels::Noise noise(const Call& call, const Target& to) const {
    return noise_of(rounding_, call.random, to.words, to.segment, to.piece.first);
  }

  static kernels::CastOutput output_of(const Target& to) {
    return {to.sections[0], to.store, to.sum};
  }

  Rounding rounding_;
};

template <class Format>
CodecEntry cast_entry() {
  static_assert(SlicedFormat<CastCodec<Format>> && RawFormat<CastCodec<Format>>);
  CodecInfo info{
      .name = Format::kName, .id = Format::kId, .summary = Format::kSummary, .options = {}};
  if (Format::kHasRounding) info.options.push_back(kRoundingChoice.option());
  return entry_of<CastCodec<Format>>(std::move(info));
}

}  // namespace tersor::encoding
