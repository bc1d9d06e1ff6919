// fp8: eight-bit floats (OCP E4M3) with a scale per 256 values. Not useful as a codec, because int8
// has a tenth of the error at the same size. The file shows the definitions required of a quantize
// format.
#ifndef TERSOR_TESTS_SUPPORT_FP8_H_
#define TERSOR_TESTS_SUPPORT_FP8_H_

#include "kernels/quantize/formulas.h"

#include <tersor/codecs/scaled_codes.h>

#include <string_view>

#if defined(__CUDACC__)
#include "kernels/quantize/rows.cuh"
#endif

namespace tersor::kernels {

/// Scaled by 2^-120, an f32 has the exponent of an E4M3 (subnormals included) and 20 additional
/// mantissa bits.
constexpr float kFp8Shift = 0x1p-120f;

struct Fp8Format : QuantizeFormat<ScaledCodes<256, 8>> {
  static constexpr std::string_view kName = "fp8";
  static constexpr std::string_view kSummary = "E4M3, a scale for 256 values";
  static constexpr std::uint16_t kId = 60;
  static constexpr float kLevels = 448;  // the largest E4M3
};

#if defined(__CUDACC__)

template <>
struct RowCodes<Fp8Format> {
  template <NoiseKind kKind, unsigned kRow>
  TERSOR_DEVICE static RowBytes<kRow> code(const float (&p)[kRow], const BlockScale& scale,
                                           const RowNoise<kKind, kRow>& noise, unsigned chunk,
                                           float (&decoded)[kRow]) {
    std::uint32_t codes[kRow];
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i) {
      const std::uint32_t bits = magnitude_bits(p[i] * scale.inverse * kFp8Shift);
      std::uint32_t magnitude;
      if constexpr (kKind == NoiseKind::kNone)
        magnitude = (bits + 0x7ffffu + (bits >> 20 & 1)) >> 20;
      else
        magnitude = (bits + (noise.at(chunk, i) << 12)) >> 20;
      codes[i] = magnitude | bits_of(p[i]) >> 24 & 0x80u;
      decoded[i] = value(codes[i]) * scale.scale;
    }
    return pack_bytes<0>(codes);
  }

  template <unsigned kRow>
  TERSOR_DEVICE static void values(const RowBytes<kRow>& row, float (&values)[kRow]) {
    std::uint32_t word[kRow / 4];
    std::memcpy(word, &row, sizeof row);
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i) values[i] = value(word[i / 4] >> i % 4 * 8);
  }

 private:
  TERSOR_DEVICE static float value(std::uint32_t code) {
    return float_of((code & 0x80u) << 24 | (code & 0x7fu) << 20) * (1 / kFp8Shift);
  }
};

#endif

}  // namespace tersor::kernels

#endif  // TERSOR_TESTS_SUPPORT_FP8_H_

#ifdef TERSOR_VECTORS

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// A code is the number of a signed byte: -128 to 127.
template <>
struct VectorCodes<Fp8Format> {
  static HWY_INLINE Coded nearest(VF32 p, VF32 inverse) {
    const VI32 bits = magnitude(p, inverse);
    const VI32 even = hn::And(hn::ShiftRight<20>(bits), hn::Set(I32(), 1));
    return coded(p, hn::Add(bits, hn::Add(even, hn::Set(I32(), 0x7ffff))));
  }

  static HWY_INLINE Coded stochastic(VF32 p, VF32 inverse, VI32 random) {
    return coded(p, hn::Add(magnitude(p, inverse), hn::ShiftLeft<12>(random)));
  }

  static HWY_INLINE void store(const VI32 (&codes)[kVectors], std::byte* block, std::size_t index) {
    store_bytes(codes, block + index);
  }

  static HWY_INLINE void load(const std::byte* block, std::size_t index, VF32 (&values)[kVectors]) {
    const hn::Rebind<std::int8_t, I32> narrow;
    const auto* bytes = reinterpret_cast<const std::int8_t*>(block) + index;
    for (std::size_t k = 0; k < kVectors; ++k)
      values[k] = value(hn::PromoteTo(I32(), hn::LoadU(narrow, bytes + k * kLanes)));
  }

 private:
  static HWY_INLINE VI32 magnitude(VF32 p, VF32 inverse) {
    const VF32 shifted = hn::Mul(hn::Mul(p, inverse), hn::Set(F32(), kFp8Shift));
    return hn::BitCast(I32(), hn::Abs(shifted));
  }

  static HWY_INLINE Coded coded(VF32 p, VI32 bits) {
    const VI32 sign = hn::ShiftRight<31>(hn::BitCast(I32(), p));
    const VI32 codes =
        hn::Add(hn::ShiftRight<20>(bits), hn::And(sign, hn::Set(I32(), std::int32_t{-128})));
    return {codes, value(codes)};
  }

  static HWY_INLINE VF32 value(VI32 codes) {
    const VI32 sign = hn::ShiftLeft<31>(hn::ShiftRight<31>(codes));
    const VI32 magnitude = hn::ShiftLeft<20>(hn::And(codes, hn::Set(I32(), 0x7f)));
    return hn::Mul(hn::BitCast(F32(), hn::Or(sign, magnitude)), hn::Set(F32(), 1 / kFp8Shift));
  }
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_VECTORS

#ifdef TERSOR_QUANTIZE_FORMAT
TERSOR_QUANTIZE_FORMAT(Fp8Format)
#endif
