// nvfp4: codes of e2m1, an e4m3 scale per 16 values and an f32 per segment (NVFP4). The bytes of a
// finite segment equal torchao's `nvfp4_quantize` with a dynamic scale. The packing is from int4.h,
// so formats.h includes int4.h first.
#ifndef TERSOR_KERNELS_QUANTIZE_NVFP4_H_
#define TERSOR_KERNELS_QUANTIZE_NVFP4_H_

#include "kernels/quantize/formulas.h"
#include "kernels/quantize/small_floats.h"

#include <tersor/codecs/nvfp4.h>

#include <string_view>

namespace tersor::kernels {

struct Nvfp4Scale {
  using Stored = std::uint8_t;

  /// The scale of a segment's scales: the segment's largest finite magnitude gets the largest scale
  /// and the largest code. Smaller scales than 2^-100 count as 0.
  struct SegmentScale {
    float scale, inverse;

    TERSOR_BODY static SegmentScale of(float largest) {
      const float scale = quotient(largest, E4m3::kLargest * E2m1::kLargest);
      if (scale < kMinScale) return {0.0f, 0.0f};
      return {scale, quotient(1.0f, scale)};
    }
  };

  TERSOR_BODY static Stored stored(const BlockScale& block) {
    return static_cast<Stored>(block.poisoned ? E4m3::kSpecial : block.code);
  }
  TERSOR_BODY static float value(Stored scale, SegmentScale segment_scale) {
    return segment_scale.scale * small_value<E4m3>(scale);
  }
};

struct Nvfp4Format : QuantizeFormat<Nvfp4Layout> {
  using Scale = Nvfp4Scale;
  static constexpr std::string_view kName = "nvfp4";
  static constexpr std::string_view kSummary =
      "four-bit floats, an eight-bit float per 16 values, an f32 per tensor (torchao's bytes)";
  static constexpr std::uint16_t kId = kNvfp4CodecId;
  static constexpr bool kStochastic = false;
  static constexpr float kZero = -0.0f;             // keeps the sign of a code
  static constexpr float kMinBlockScale = 0x1p-6f;  // the smallest scale: the smallest normal e4m3

  TERSOR_BODY static BlockScale block_scale(std::uint32_t absmax_bits,
                                            Scale::SegmentScale segment_scale) {
    if (segment_scale.scale == 0) return {0.0f, 0.0f, false};
    const float wanted =
        quotient(quotient(float_of(absmax_bits), E2m1::kLargest), segment_scale.scale);
    float scale;
    const std::uint32_t code =
        small_code<E4m3>(wanted > kMinBlockScale ? wanted : kMinBlockScale, scale);
    return {segment_scale.scale * scale, quotient(segment_scale.inverse, scale), false, code};
  }
};

#if defined(__CUDACC__)

template <>
struct RowCodes<Nvfp4Format> : SmallRowCodes<E2m1> {};

#endif

}  // namespace tersor::kernels

#endif  // TERSOR_KERNELS_QUANTIZE_NVFP4_H_

#ifdef TERSOR_VECTORS

#include "kernels/quantize/small_floats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

struct Nvfp4Numbers {
#if HWY_TARGET == HWY_AVX3
  static HWY_INLINE __m512 table() {
    return _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f,  //
                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
  }
#endif
  static HWY_INLINE VF32 of(VI32 codes) { return SmallVectorCodes<E2m1>::values(codes); }
};

template <>
struct VectorCodes<Nvfp4Format> : SmallVectorCodes<E2m1>, NibbleCodes {
  static HWY_INLINE void load(const std::byte* block, std::size_t index, VF32 (&values)[kVectors]) {
    NibbleCodes::load<Nvfp4Numbers>(block, index, values);
  }
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_VECTORS

#ifdef TERSOR_QUANTIZE_FORMAT
TERSOR_QUANTIZE_FORMAT(Nvfp4Format)
#endif
