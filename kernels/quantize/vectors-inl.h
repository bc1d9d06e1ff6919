// The codes of a block as vectors, for one instruction set. The formats' host code builds on this
// file.
#if defined(TERSOR_KERNELS_QUANTIZE_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_QUANTIZE_VECTORS_INL_H_
#undef TERSOR_KERNELS_QUANTIZE_VECTORS_INL_H_
#else
#define TERSOR_KERNELS_QUANTIZE_VECTORS_INL_H_
#endif

#include "kernels/host/simd-inl.h"
#include "kernels/quantize/formulas.h"

#include <algorithm>
#include <cstring>

// Put before loops over the vectors of a group. Portable code keeps the loops, because a group of
// single values gains nothing by unrolling, and the code would be large.
#undef TERSOR_GROUP_LOOP
#if TERSOR_PORTABLE
#define TERSOR_GROUP_LOOP _Pragma("GCC unroll 1")
#else
#define TERSOR_GROUP_LOOP
#endif

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

constexpr std::size_t kVectors = 8;                // vectors packed or unpacked at once
constexpr std::size_t kGroup = kVectors * kLanes;  // values in kVectors vectors

/// The loops process tiles: a block, or as many blocks as make a group.
template <class Format>
constexpr std::size_t kTile = std::max(Format::kBlock, kGroup);
template <class Format>
constexpr std::size_t kScales = kTile<Format> / Format::kBlock;  // per tile
/// The block in a tile of the value at index `at`.
template <class Format>
constexpr std::size_t block_of(std::size_t at) {
  return kScales<Format> == 1 ? 0 : at / Format::kBlock;
}

/// Codes and their unscaled values.
struct Coded {
  VI32 codes;
  VF32 values;
};

/// The host code of a format. Each format specialises this template:
///   Coded nearest(VF32 p, VF32 inverse)
///     Rounds to nearest.
///   Coded stochastic(VF32 p, VF32 inverse, VI32 random)
///     Rounds stochastically with one random byte per lane.
///   void store(codes, block, index)
///     Stores kGroup codes from `index` on.
///   void load(block, index, values)
///     Loads kGroup unscaled values from `index` on.
template <class Format>
struct VectorCodes;

/// Integer codes.
struct IntegerVectorCodes {
  static HWY_INLINE Coded nearest(VF32 p, VF32 inverse) {
    const VF32 magic = hn::Set(F32(), kNearestMagic);
    const VF32 sum = fused(p, inverse, magic);
    return {hn::Sub(hn::BitCast(I32(), sum), hn::Set(I32(), kNearestBits)), hn::Sub(sum, magic)};
  }

  static HWY_INLINE Coded stochastic(VF32 p, VF32 inverse, VI32 random) {
    const VI32 sum = hn::BitCast(I32(), fused(p, inverse, hn::Set(F32(), kStochasticMagic)));
    const VI32 fraction = hn::Sub(sum, hn::Set(I32(), kStochasticBits));
    const VI32 codes = hn::ShiftRight<8>(hn::Add(fraction, random));
    return {codes, hn::ConvertTo(F32(), codes)};
  }
};

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2

// This code uses intrinsics, because Highway 1.0.3 lacks the demotion of i16 pairs and the sum of
// byte pairs. Codes fit, so saturating packs leave the codes unchanged. The packs operate on
// 16-byte lanes: vectors a, b, c, d give a0-3 b0-3 c0-3 d0-3 a4-7 …. A permutation then restores
// the order.

#if HWY_TARGET == HWY_AVX3

using Bytes = __m512i;

HWY_INLINE Bytes pack4(VI32 a, VI32 b, VI32 c, VI32 d) {
  return _mm512_packs_epi16(_mm512_packs_epi32(a.raw, b.raw), _mm512_packs_epi32(c.raw, d.raw));
}

HWY_INLINE void store_in_order(Bytes packed, std::byte* target) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(target, _mm512_permutexvar_epi32(order, packed));
}

#else

using Bytes = __m256i;

HWY_INLINE Bytes pack4(VI32 a, VI32 b, VI32 c, VI32 d) {
  return _mm256_packs_epi16(_mm256_packs_epi32(a.raw, b.raw), _mm256_packs_epi32(c.raw, d.raw));
}

HWY_INLINE void store_in_order(Bytes packed, std::byte* target) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target),
                      _mm256_permutevar8x32_epi32(packed, order));
}

#endif

/// Stores kGroup codes in [-128, 127] as bytes.
HWY_INLINE void store_bytes(const VI32 (&codes)[kVectors], std::byte* bytes) {
  store_in_order(pack4(codes[0], codes[1], codes[2], codes[3]), bytes);
  store_in_order(pack4(codes[4], codes[5], codes[6], codes[7]), bytes + 4 * kLanes);
}

#else

/// Stores kGroup codes in [-128, 127] as bytes.
HWY_INLINE void store_bytes(const VI32 (&codes)[kVectors], std::byte* bytes) {
  const hn::Rebind<std::int8_t, I32> narrow;
  TERSOR_GROUP_LOOP
  for (std::size_t k = 0; k < kVectors; ++k)
    hn::StoreU(hn::DemoteTo(narrow, codes[k]), narrow,
               reinterpret_cast<std::int8_t*>(bytes) + k * kLanes);
}

#endif

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_QUANTIZE_VECTORS_INL_H_
