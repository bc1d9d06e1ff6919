// mxfp8: codes of e4m3 or, by option, e5m2, and an e8m0 scale per 32 values (OCP Microscaling
// Formats 1.0). The bytes of a finite block are those of torchao's `to_mx`.
#ifndef TERSOR_KERNELS_QUANTIZE_MXFP8_H_
#define TERSOR_KERNELS_QUANTIZE_MXFP8_H_

#include "kernels/quantize/formulas.h"
#include "kernels/quantize/small_floats.h"

#include <tersor/codecs/mxfp8.h>

#include <string_view>

namespace tersor::kernels {

template <class Small, unsigned kLargestPower>
struct MxFormat : QuantizeFormat<Mxfp8Layout> {
  using Scale = E8m0Scale;
  static constexpr std::string_view kName = "mxfp8";
  static constexpr std::string_view kSummary =
      "eight-bit floats, a power of two per 32 values (OCP MX; torchao's bytes)";
  static constexpr std::uint16_t kId = kMxfp8CodecId;
  static constexpr bool kStochastic = false;
  static constexpr float kZero = -0.0f;  // keeps the sign of a code

  /// The scale is 2^-kLargestPower times the power of two at or below the largest magnitude. Scale
  /// 2^-127 divides like 2^-126, as in torchao.
  TERSOR_BODY static BlockScale block_scale(std::uint32_t absmax_bits, NoSegmentScale) {
    const std::uint32_t power = absmax_bits >> 23;
    const std::uint32_t scale = power > kLargestPower ? power - kLargestPower : 0u;
    const std::uint32_t divisor = scale > 1 ? scale : 1u;
    return {Scale::value(static_cast<std::uint8_t>(scale)), float_of((254u - divisor) << 23),
            false};
  }
};

struct Mxfp8E5m2Format : MxFormat<E5m2, 15> {
  static constexpr unsigned kElements = 1;
};
struct Mxfp8Format : MxFormat<E4m3, 8> {
  static constexpr unsigned kElements = 0;
  using OtherElements = Mxfp8E5m2Format;
};

#if defined(__CUDACC__)

template <>
struct RowCodes<Mxfp8Format> : SmallRowCodes<E4m3> {};
template <>
struct RowCodes<Mxfp8E5m2Format> : SmallRowCodes<E5m2> {};

#endif

}  // namespace tersor::kernels

#endif  // TERSOR_KERNELS_QUANTIZE_MXFP8_H_

#ifdef TERSOR_VECTORS

#include "kernels/quantize/small_floats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

template <class Small>
struct Mxfp8VectorCodes : SmallVectorCodes<Small> {
  static HWY_INLINE void store(const VI32 (&codes)[kVectors], std::byte* block, std::size_t index) {
    store_bytes(codes, block + index);
  }

  static HWY_INLINE void load(const std::byte* block, std::size_t index, VF32 (&values)[kVectors]) {
    const hn::Rebind<std::int8_t, I32> narrow;
    const auto* bytes = reinterpret_cast<const std::int8_t*>(block) + index;
    TERSOR_GROUP_LOOP
    for (std::size_t k = 0; k < kVectors; ++k)
      values[k] = SmallVectorCodes<Small>::values(
          hn::PromoteTo(I32(), hn::LoadU(narrow, bytes + k * kLanes)));
  }
};

template <>
struct VectorCodes<Mxfp8Format> : Mxfp8VectorCodes<E4m3> {};
template <>
struct VectorCodes<Mxfp8E5m2Format> : Mxfp8VectorCodes<E5m2> {};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_VECTORS

#ifdef TERSOR_QUANTIZE_FORMAT
TERSOR_QUANTIZE_FORMAT(Mxfp8Format)
#ifndef TERSOR_QUANTIZE_REGISTRY  // the registry reaches this format by an option of mxfp8
TERSOR_QUANTIZE_FORMAT(Mxfp8E5m2Format)
#endif
#endif
