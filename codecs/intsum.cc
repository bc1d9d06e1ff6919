// intsum: joins the rounds, their kernels and the name. If the spec has a scale, there is no round
// of maxima: each rank sends flags of its non-finite blocks after the codes.

#include "codecs/format_codec.h"
#include "codecs/registry.h"
#include "kernels/intsum/cpu.h"
#include "kernels/intsum/device.h"
#include "kernels/intsum/offsets.h"

#include <tersor/codecs/intsum.h>

#include <array>
#include <cstring>
#include <string>

namespace tersor::encoding {
namespace {

using kernels::IntsumOffset;
using IntsumSlice = SliceAt<IntsumOffset>;

constexpr Choice<AccumulatorBits, 3> kAccumulatorChoice = {
    .key = "bits",
    .words = {{{"8", AccumulatorBits::k8},
               {"16", AccumulatorBits::k16},
               {"32", AccumulatorBits::k32}}},
    .deprecated = "lanes"};

constexpr Number kScaleNumber = {"scale", 1e-30, 1e30, 0};

class IntsumCodec final : public FormatCodec<IntsumCodec> {
 public:
  IntsumCodec(CodecSpec spec, IntsumOptions options)
      : FormatCodec(std::move(spec), kIntsumCodecId), options_(options) {}

  static IntsumOptions read(OptionReader& reader) {
    return {.accumulator_bits = reader.read(kAccumulatorChoice),
            .rounding = reader.read(kRoundingChoice),
            .scale = static_cast<float>(reader.read(kScaleNumber))};
  }

  std::span<const Exchange> exchanges() const {
    static constexpr std::array kExchanges{Exchange::kNativeMaximum, Exchange::kNativeSum};
    return std::span<const Exchange>(kExchanges).subspan(has_fixed_scale() ? 1 : 0);
  }

  CodecTraits traits() const override { return {}; }

  PlanSizes sizes(const PlanRequest& request) const {
    check_contributions(request.contributions);
    return {.round_state_bytes = end_of(request.segments).maxima * sizeof(float)};
  }

  RawValues raw_values(std::span<const Segment> segments, Dtype, unsigned round) const {
    const IntsumOffset end = end_of(segments);
    if (is_maxima_round(round)) return {Dtype::kU32, end.maxima};
    return {intsum_dtype(options_.accumulator_bits),
            end.codes + (has_fixed_scale() ? end.maxima : 0)};
  }

  void device_encode_raw(const EncodeCall& call, float factor, ValueSpan values) const {
    if (is_maxima_round(call.identity.round))
      return kernels::intsum_device_maxima(call, factor, values);
    kernels::intsum_device_encode(call, options_, factor, values);
  }
  void device_absorb(const DecodeCall& call, ConstValueSpan values) const {
    kernels::intsum_device_scales(call, levels_of(call.contributions), values);
  }
  void device_decode_raw(const DecodeCall& call, ConstValueSpan values) const {
    kernels::intsum_device_decode(call, options_, values);
  }

  std::size_t host_encode_raw(const EncodeCall& call, float factor, ValueSpan values) const {
    const StateWords words = words_of(call);
    const IntsumOffset end = end_of(call.segments);
    for_each(call, [&](const IntsumSlice& slice) {
      if (is_maxima_round(call.identity.round))
        return write_maxima(call, words, factor, slice, values.as<std::uint32_t>().data());
      if (has_fixed_scale())
        flag_blocks(call, words, factor, slice, values.subspan(end.codes, end.maxima));
      write_codes(call, words, factor, slice, values);
    });
    return 0;
  }
  void host_absorb(const DecodeCall& call, ConstValueSpan values) const {
    kernels::intsum_scales(values.as<std::uint32_t>(), levels_of(call.contributions),
                           scales_of(call.execution));
  }
  void host_decode_raw(const DecodeCall& call, ConstValueSpan values) const {
    const kernels::Store store = store_for(values.bytes() + bytes_of(call.outputs));
    const IntsumOffset end = end_of(call.segments);
    if (has_fixed_scale())
      kernels::intsum_flagged_scales(values.subspan(end.codes, end.maxima).pointer(),
                                     options_.accumulator_bits, options_.scale,
                                     {scales_of(call.execution), end.maxima});
    for_each(call, [&](const IntsumSlice& slice) { decode_slice(call, slice, values, store); });
  }

 private:
  bool has_fixed_scale() const { return options_.scale > 0; }
  bool is_maxima_round(unsigned round) const { return round == 0 && !has_fixed_scale(); }

  static float* scales_of(const Execution& execution) {
    return reinterpret_cast<float*>(execution.round_state.data());
  }

  float levels_of(std::size_t contributions) const {
    return static_cast<float>(intsum_levels(options_, contributions));
  }

  IntsumOffset offset_of(std::size_t count) const {
    return IntsumOffset::of(count, options_.accumulator_bits);
  }

  IntsumOffset end_of(std::span<const Segment> segments) const {
    IntsumOffset end;
    for (const Segment& segment : segments) end += offset_of(segment.count);
    return end;
  }

  /// Returns the offset of a slice's raw values.
  IntsumOffset begin_of(const IntsumSlice& slice) const {
    IntsumOffset begin = slice.offset;
    return begin += offset_of(slice.first);
  }

  /// Returns the byte offset of a slice's codes.
  std::size_t codes_offset(const IntsumSlice& slice) const {
    return begin_of(slice).codes * dtype_bytes(intsum_dtype(options_.accumulator_bits));
  }

  template <typename Call, typename Visitor>
  void for_each(const Call& call, const Visitor& visit) const {
    for_each_slice(
        call.segments, call.execution.threads,
        [this](const Segment& segment) { return offset_of(segment.count); }, visit);
  }

  void write_maxima(const EncodeCall& call, const StateWords& words, float factor,
                    const IntsumSlice& slice, std::uint32_t* values) const {
    std::uint32_t* maxima = values + begin_of(slice).maxima;
    if (is_active(call.segments[slice.segment]))
      kernels::intsum_maxima(sent_of(call, slice, words, kernels::Store::kCached), factor, maxima);
    else
      std::fill_n(maxima, offset_of(slice.count).maxima, 0u);
  }

  void write_codes(const EncodeCall& call, const StateWords& words, float factor,
                   const IntsumSlice& slice, ValueSpan values) const {
    const Segment& segment = call.segments[slice.segment];
    const kernels::Store store = store_for(values.bytes() + bytes_of(call.gradients));
    const kernels::EncodeInput sent = sent_of(call, slice, words, store);
    std::byte* codes = values.pointer() + codes_offset(slice);
    if (!is_active(segment)) {
      std::memset(codes, 0, offset_of(slice.count).codes * dtype_bytes(values.dtype()));
      return keep_residual(sent.feedback, slice.count);
    }
    kernels::intsum_encode(
        {.sent = sent,
         .factor = factor,
         .levels = levels_of(call.contributions),
         .noise = noise_of(options_.rounding, call.random, words, segment, slice.first),
         .scales = scales_of(call.execution) + begin_of(slice).maxima,
         .codes = codes,
         .accumulator_bits = options_.accumulator_bits,
         .store = store});
  }

  /// Computes a slice's scales and flags from the rank's own blocks.
  void flag_blocks(const EncodeCall& call, const StateWords& words, float factor,
                   const IntsumSlice& slice, ValueSpan flags) const {
    float* scales = scales_of(call.execution);
    write_maxima(call, words, factor, slice, reinterpret_cast<std::uint32_t*>(scales));
    const std::size_t first = begin_of(slice).maxima, count = offset_of(slice.count).maxima;
    kernels::intsum_flag_blocks({scales + first, count}, options_.scale, options_.accumulator_bits,
                                flags.subspan(first, count).pointer());
  }

  void decode_slice(const DecodeCall& call, const IntsumSlice& slice, ConstValueSpan values,
                    kernels::Store store) const {
    const kernels::QuantizedView view{scales_of(call.execution) + begin_of(slice).maxima,
                                      values.pointer() + codes_offset(slice)};
    kernels::intsum_decode({{&view, 1}, slice.count, decoded_of(call, slice, store)},
                           options_.accumulator_bits);
  }

  void check_contributions(std::size_t contributions) const {
    if (intsum_levels(options_, contributions) != 0) return;
    std::string advice = "no accumulator size fits so many ranks";
    for (const auto& [word, accumulator_bits] : kAccumulatorChoice.words)
      if (intsum_levels({accumulator_bits, options_.rounding}, contributions) != 0) {
        advice = "use bits=" + std::string(word);
        break;
      }
    fail(*this, "the codes of " + std::to_string(contributions) +
                    " ranks do not fit into accumulators of " +
                    std::to_string(static_cast<unsigned>(options_.accumulator_bits)) +
                    " bits, which hold the codes of " +
                    std::to_string(intsum_most(options_.accumulator_bits)) + "; " + advice);
  }

  IntsumOptions options_;
};
static_assert(AbsorbingFormat<IntsumCodec>);

}  // namespace

CodecEntry intsum_entry() {
  return entry_of<IntsumCodec>(
      {.name = "intsum",
       .id = kIntsumCodecId,
       .summary = "integers with scales common to all ranks; sums are exact (THC)",
       .options = {kAccumulatorChoice.option(), kRoundingChoice.option(), kScaleNumber.option()}});
}

}  // namespace tersor::encoding
