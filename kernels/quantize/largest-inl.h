// The first pass of formats with a number for a whole segment, and the table of all loops, for one
// instruction set.
#if defined(TERSOR_KERNELS_QUANTIZE_LARGEST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_QUANTIZE_LARGEST_INL_H_
#undef TERSOR_KERNELS_QUANTIZE_LARGEST_INL_H_
#else
#define TERSOR_KERNELS_QUANTIZE_LARGEST_INL_H_
#endif

#include "kernels/quantize/loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// Returns a finite value, or 0.
HWY_INLINE VF32 finite_or_zero(VF32 value) {
  const auto is_finite = hn::Lt(hn::Abs(value), hn::Set(F32(), float_of(kInfinityBits)));
  return hn::IfThenElseZero(is_finite, value);
}

template <class Format, typename G, typename E>
std::uint32_t largest_of_range(const EncodeInput& sent) {
  constexpr std::size_t kValues = kTile<Format>;
  SentBlocks<kValues, G, E> blocks(sent);
  alignas(kCacheLine) float space[kValues];
  Absmax absmax;
  for (std::size_t first = 0; first < sent.count; first += kValues)
    blocks.at(first, space,
              [&](VF32 value, std::size_t k) HWY_ATTR { absmax.update(finite_or_zero(value), k); });
  return absmax.bits();
}

template <class Format, typename E>
std::uint32_t largest_of_sums(const QuantizeReduce& arguments) {
  constexpr std::size_t kValues = kTile<Format>;
  const Factors factors(arguments.feedback);
  Payloads<Format> payloads(arguments.payloads, arguments.count);
  Input<E, kValues> residuals(arguments.feedback.residual_in, arguments.count);
  Absmax absmax;
  for (std::size_t first = 0; first < arguments.count; first += kValues) {
    const Pointer<const E> residual = residuals.tile(first);
    payloads.visit(first, arguments.factor, ZeroStart<Format>(), [&](const auto& sum_of) HWY_ATTR {
      for (std::size_t i = 0; i < kValues; i += kGroup) {
        VF32 sum[kVectors];
        sum_of(i, sum);
        TERSOR_GROUP_LOOP
        for (std::size_t k = 0, at = i; k < kVectors; ++k, at += kLanes)
          absmax.update(finite_or_zero(add_residual(sum[k], residual + at, factors)), k);
      }
    });
  }
  return absmax.bits();
}

template <class Format>
std::uint32_t largest_sent(const EncodeInput& sent) {
  const DefaultFloatMode mode;
  return visit_sent(
      sent, [&]<typename G, typename E>(G, E) { return largest_of_range<Format, G, E>(sent); });
}

template <class Format>
std::uint32_t largest_sum(const QuantizeReduce& arguments) {
  const DefaultFloatMode mode;
  return visit_residual(arguments.feedback,
                        [&]<typename E>(E) { return largest_of_sums<Format, E>(arguments); });
}

template <class Format>
QuantizeLoops loops_of() {
  QuantizeLoops loops = {encode<Format>, decode<Format>, reduce<Format>, nullptr, nullptr};
  if constexpr (kHasSegmentScale<Format>) {
    loops.largest_sent = largest_sent<Format>;
    loops.largest_sum = largest_sum<Format>;
  }
  return loops;
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_QUANTIZE_LARGEST_INL_H_
