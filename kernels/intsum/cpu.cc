// intsum on the CPU: the loops of kernels/quantize/loops-inl.h with given scales. Memory traffic in
// bytes per value, for f32:
//   Maxima: 4 read.
//   Codes: 4 read and 1, 2 or 4 written. Error feedback adds 4 read and 4 written.

#include "kernels/intsum/cpu.h"

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/intsum/cpu.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/intsum/codes-inl.h"
#include "kernels/intsum/formulas.h"
#include "kernels/quantize/loops-inl.h"

#define TERSOR_VECTORS
#include "kernels/quantize/int8.h"
#undef TERSOR_VECTORS

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

template <>
struct VectorCodes<IntsumBytes> : VectorCodes<Int8Format> {};

template <typename G, typename E>
void maxima_range(const EncodeInput& sent, float factor, std::uint32_t* maxima) {
  SentBlocks<kIntsumBlock, G, E> blocks(sent);
  alignas(kCacheLine) float space[kIntsumBlock];
  for (std::size_t first = 0; first < sent.count; first += kIntsumBlock) {
    Absmax absmax;
    blocks.at(first, space, [&](VF32 p, std::size_t k) HWY_ATTR { absmax.update(p, k); });
    *maxima++ = sent_maximum(absmax.bits(), factor);
  }
}

template <class Format, typename G, typename E>
void codes_range(const IntsumEncode& arguments) {
  const EncodeInput& sent = arguments.sent;
  SentBlocks<kIntsumBlock, G, E> blocks(sent);
  Quantizer<Format, E> quantizer(sent.count, arguments.noise, sent.feedback,
                                 {.codes = arguments.codes, .store = arguments.store},
                                 arguments.levels);
  const float* scales = arguments.scales;
  quantizer.run([&](std::size_t first, float* space, InputTile<Format, E>& tile) HWY_ATTR {
    tile.p = blocks.at(first, space, [](VF32, std::size_t) HWY_ATTR {});
    tile.residual = blocks.residual();
    tile.scale[0] = own_scale(*scales++, arguments.factor);
  });
}

/// Calls `visitor(Format{})`.
template <typename Visitor>
void visit_widths(AccumulatorBits accumulator_bits, Visitor&& visitor) {
  if (accumulator_bits == AccumulatorBits::k8) return visitor(IntsumBytes{});
  if (accumulator_bits == AccumulatorBits::k16) return visitor(IntsumPairs{});
  visitor(IntsumWords{});
}

void intsum_maxima_on(const EncodeInput& sent, float factor, std::uint32_t* maxima) {
  const DefaultFloatMode mode;
  visit_sent(sent, [&](auto gradient, auto residual) {
    maxima_range<decltype(gradient), decltype(residual)>(sent, factor, maxima);
  });
}

void intsum_encode_on(const IntsumEncode& arguments) {
  const DefaultFloatMode mode;
  visit_widths(arguments.accumulator_bits, [&](auto format) {
    visit_sent(arguments.sent, [&](auto gradient, auto residual) {
      codes_range<decltype(format), decltype(gradient), decltype(residual)>(arguments);
    });
  });
}

void intsum_decode_on(const QuantizeDecode& arguments, AccumulatorBits accumulator_bits) {
  visit_widths(accumulator_bits, [&](auto format) { decode<decltype(format)>(arguments); });
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

TERSOR_DISPATCHED(void, intsum_maxima,
                  (const EncodeInput& sent, float factor, std::uint32_t* maxima),
                  (sent, factor, maxima))
TERSOR_DISPATCHED(void, intsum_encode, (const IntsumEncode& arguments), (arguments))
TERSOR_DISPATCHED(void, intsum_decode,
                  (const QuantizeDecode& arguments, AccumulatorBits accumulator_bits),
                  (arguments, accumulator_bits))

void intsum_scales(std::span<const std::uint32_t> maxima, float levels, float* scales) {
  const DefaultFloatMode mode;
  for (std::size_t i = 0; i < maxima.size(); ++i) scales[i] = shared_scale(maxima[i], levels);
}

namespace {

/// Calls `visitor` with a pointer to the blocks' flags, converted to the flags' integer type.
template <typename Visitor>
void visit_flags(AccumulatorBits accumulator_bits, std::byte* flags, const Visitor& visitor) {
  if (accumulator_bits == AccumulatorBits::k8)
    return visitor(reinterpret_cast<std::uint8_t*>(flags));
  visitor(reinterpret_cast<std::uint32_t*>(flags));
}

}  // namespace

void intsum_flag_blocks(std::span<float> maxima_to_scales, float scale,
                        AccumulatorBits accumulator_bits, std::byte* flags) {
  visit_flags(accumulator_bits, flags, [&](auto* flag) {
    for (float& block : maxima_to_scales) {
      const bool flagged = is_flagged(bits_of(block));
      *flag++ = flagged;
      block = fixed_scale(flagged, scale);
    }
  });
}

void intsum_flagged_scales(const std::byte* flags, AccumulatorBits accumulator_bits, float scale,
                           std::span<float> scales) {
  visit_flags(accumulator_bits, const_cast<std::byte*>(flags), [&](const auto* flag) {
    for (float& block : scales) block = fixed_scale(*flag++ != 0, scale);
  });
}

}  // namespace tersor::kernels
#endif
