// Conversion between vectors in rotated space and 1-bit to 4-bit codes stored as bit planes, for
// one instruction set.
#if defined(TERSOR_KERNELS_HADAMARD_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_HADAMARD_CODES_INL_H_
#undef TERSOR_KERNELS_HADAMARD_CODES_INL_H_
#else
#define TERSOR_KERNELS_HADAMARD_CODES_INL_H_
#endif

#include "kernels/hadamard/formulas.h"
#include "kernels/host/rotation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

constexpr std::size_t kPlaneBytes = HadamardLayout::kPlaneBytes;

#if HWY_TARGET == HWY_AVX3

constexpr std::size_t kCodeVectors = 4;  // vectors whose codes are handled together

/// One byte per code. Each 128-bit part holds the codes of four lanes, vector by vector.
struct Codes {
  __m512i bytes;
};

using BlockCodes = Codes[kRotationVectors / kCodeVectors];

/// Converts between code order and value order.
HWY_INLINE __m512i reordered(__m512i bytes) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, bytes);
}

HWY_INLINE __m512i plane_bit(std::size_t plane) {
  return _mm512_set1_epi8(static_cast<char>(1 << plane));
}

/// Stores the codes of vectors k to k + kCodeVectors − 1.
template <unsigned kBits>
HWY_INLINE void store_codes(Codes codes, std::uint8_t* planes, std::size_t k) {
  const __m512i ordered = reordered(codes.bytes);
  TERSOR_UNROLL
  for (std::size_t plane = 0; plane < kBits; ++plane) {
    const std::uint64_t bits = _mm512_test_epi8_mask(ordered, plane_bit(plane));
    std::memcpy(planes + plane * kPlaneBytes + 2 * k, &bits, sizeof bits);
  }
}

template <unsigned kBits>
HWY_INLINE Codes load_codes(const std::uint8_t* planes, std::size_t k) {
  __m512i ordered = _mm512_setzero_si512();
  TERSOR_UNROLL
  for (std::size_t plane = 0; plane < kBits; ++plane) {
    std::uint64_t bits;
    std::memcpy(&bits, planes + plane * kPlaneBytes + 2 * k, sizeof bits);
    ordered = plane == 0 ? _mm512_maskz_mov_epi8(bits, plane_bit(0))
                         : _mm512_mask_add_epi8(ordered, bits, ordered, plane_bit(plane));
  }
  return {reordered(ordered)};
}

/// k = code − kMiddle of each code, exact.
template <unsigned kBits>
class CodeNumbers {
 public:
  HWY_INLINE CodeNumbers() {
    const VI32 code = hn::And(hn::Iota(I32(), 0), hn::Set(I32(), (1 << kBits) - 1));
    table_ = hn::Sub(hn::ConvertTo(F32(), code), hn::Set(F32(), HadamardSteps<kBits>::kMiddle));
  }

  HWY_INLINE void of(Codes codes, VF32 (&numbers)[kCodeVectors]) const {
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i lanes = _mm512_shuffle_epi8(codes.bytes, order);
    TERSOR_UNROLL
    for (unsigned i = 0; i < kCodeVectors; ++i)
      numbers[i] = VF32{_mm512_permutexvar_ps(_mm512_srli_epi32(lanes, 8 * i), table_.raw)};
  }

 private:
  VF32 table_;  // indexed by the lowest four bits of a lane
};

/// Returns the codes of kCodeVectors vectors of y. Every |y / s| is at most 16 / Δ < 48, so 16 bits
/// suffice.
template <unsigned kBits>
HWY_INLINE Codes codes_of(const float* y, VF32 inverse) {
  using Steps = HadamardSteps<kBits>;
  __m512i x[kCodeVectors];
  TERSOR_UNROLL
  for (std::size_t i = 0; i < kCodeVectors; ++i) {
    const VF32 value = hn::Load(F32(), y + i * kLanes);
    x[i] = kBits == 1
               ? _mm512_castps_si512(value.raw)
               : _mm512_cvtps_epi32(fused(value, inverse, hn::Set(F32(), Steps::kMiddle)).raw);
  }
  if constexpr (kBits == 1) {
    const __m512i bytes =
        _mm512_packs_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3]));
    return {_mm512_andnot_si512(_mm512_srli_epi16(bytes, 7), plane_bit(0))};
  }
  const __m512i bytes =
      _mm512_packus_epi16(_mm512_packus_epi32(x[0], x[1]), _mm512_packus_epi32(x[2], x[3]));
  return {_mm512_min_epu8(bytes, _mm512_set1_epi8((1 << kBits) - 1))};
}

/// Applies T to a block's numbers: T of the codes in 16 bits, minus T of kMiddle. T of kMiddle is 0
/// except at value 0. The stages combine values whose indices differ in bit 1, then 6, 7, 0, 2, 3,
/// 5 and last 4. Pairs within a vector are first moved to two adjacent vectors. The initial order
/// is chosen to leave the result in order.
template <unsigned kBits>
HWY_INLINE void rotate_numbers(const BlockCodes& codes, RotationVectors& to) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  constexpr std::size_t kCount = 2 * kRotationVectors / kCodeVectors;
  __m512i x[kCount];
  const auto rotate_pair = [&](std::size_t i, std::size_t j, __m512i a, __m512i b) HWY_ATTR {
    x[i] = _mm512_add_epi16(a, b);
    x[j] = _mm512_sub_epi16(a, b);
  };
  TERSOR_UNROLL
  for (std::size_t i = 0; i < kCount; i += 2) {
    const __m512i ordered = _mm512_permutexvar_epi32(lanes, codes[i / 2].bytes);
    const __m512i bytes = _mm512_shuffle_epi8(ordered, order);
    x[i] = _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x0101));
    x[i + 1] = _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(-0x00ff));  // 1, −1
  }
  TERSOR_UNROLL
  for (std::size_t i = 0; i < kCount; ++i)
    if (i % 4 < 2) rotate_pair(i, i + 2, x[i], x[i + 2]);
  TERSOR_UNROLL
  for (std::size_t i = 0; i < kCount / 2; ++i) rotate_pair(i, i + 4, x[i], x[i + 4]);
  TERSOR_UNROLL
  for (std::size_t i = 0; i < kCount; i += 2) {
    TERSOR_UNROLL
    for (int times = 0; times < 2; ++times)
      rotate_pair(i, i + 1, _mm512_unpacklo_epi32(x[i], x[i + 1]),
                  _mm512_unpackhi_epi32(x[i], x[i + 1]));
    TERSOR_UNROLL
    for (int times = 0; times < 2; ++times)
      rotate_pair(i, i + 1, _mm512_shuffle_i32x4(x[i], x[i + 1], 0x88),
                  _mm512_shuffle_i32x4(x[i], x[i + 1], 0xdd));
  }
  TERSOR_UNROLL
  for (std::size_t i = 0; i < kCount; ++i) {
    to[2 * i] = VF32{_mm512_cvtepi32_ps(_mm512_madd_epi16(x[i], _mm512_set1_epi32(0x00010001)))};
    to[2 * i + 1] = VF32{_mm512_cvtepi32_ps(_mm512_madd_epi16(x[i], _mm512_set1_epi32(-0xffff)))};
  }
  constexpr float kMiddleSum = HadamardSteps<kBits>::kMiddle * kRotationBlock;
  to[0] = VF32{_mm512_mask_sub_ps(to[0].raw, 1, to[0].raw, _mm512_set1_ps(kMiddleSum))};
}

#else

constexpr std::size_t kCodeVectors = 1;  // vectors whose codes are handled together
using Codes = VU32;
using BlockCodes = Codes[kRotationVectors];

/// Returns bit kBit of each lane. Bit i of the result is from lane i.
template <int kBit>
HWY_INLINE std::uint32_t bits_of_lanes(VU32 lanes) {
#if HWY_TARGET == HWY_AVX2
  const VU32 top = hn::ShiftLeft<31 - kBit>(lanes);
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(top.raw)));
#elif TERSOR_PORTABLE
  return hn::GetLane(lanes) >> kBit & 1u;
#else
  std::uint8_t bits[8] = {};
  hn::StoreMaskBits(U32(), hn::TestBit(lanes, hn::Set(U32(), 1u << kBit)), bits);
  return bits[0];
#endif
}

/// Writes the bits of vector k into a plane. Vectors must be written in order.
HWY_INLINE void store_bits(std::uint32_t bits, std::uint8_t* plane, std::size_t k) {
  const std::size_t bit = k * kLanes % 8;
  std::uint8_t& byte = plane[k * kLanes / 8];
  byte = static_cast<std::uint8_t>(bit == 0 ? bits : byte | bits << bit);
}

/// Stores the codes of vector k, which are in the lowest bits of `codes`.
template <unsigned kBits>
HWY_INLINE void store_codes(Codes codes, std::uint8_t* planes, std::size_t k) {
  store_bits(bits_of_lanes<0>(codes), planes, k);
  if constexpr (kBits > 1) store_bits(bits_of_lanes<1>(codes), planes + kPlaneBytes, k);
  if constexpr (kBits > 2) store_bits(bits_of_lanes<2>(codes), planes + 2 * kPlaneBytes, k);
  if constexpr (kBits > 3) store_bits(bits_of_lanes<3>(codes), planes + 3 * kPlaneBytes, k);
}

/// Returns bit kBit of the codes of vector k, as a number per lane.
template <unsigned kBit>
HWY_INLINE VU32 load_bit(const std::uint8_t* planes, std::size_t k) {
  const std::uint32_t bits = bits_of_vector(planes + kBit * kPlaneBytes, k);
#if TERSOR_PORTABLE
  return hn::Set(U32(), (bits & 1u) << kBit);
#else
  const VU32 one = hn::Set(U32(), 1);
  return hn::ShiftLeft<kBit>(hn::And(hn::Shr(hn::Set(U32(), bits), hn::Iota(U32(), 0)), one));
#endif
}

template <unsigned kBits>
HWY_INLINE Codes load_codes(const std::uint8_t* planes, std::size_t k) {
  VU32 codes = load_bit<0>(planes, k);
  if constexpr (kBits > 1) codes = hn::Or(codes, load_bit<1>(planes, k));
  if constexpr (kBits > 2) codes = hn::Or(codes, load_bit<2>(planes, k));
  if constexpr (kBits > 3) codes = hn::Or(codes, load_bit<3>(planes, k));
  return codes;
}

/// k = code − kMiddle of each code, exact.
template <unsigned kBits>
struct CodeNumbers {
  HWY_INLINE void of(Codes codes, VF32 (&numbers)[kCodeVectors]) const {
    const VI32 code = hn::BitCast(I32(), hn::And(codes, hn::Set(U32(), (1u << kBits) - 1)));
    numbers[0] = hn::Sub(hn::ConvertTo(F32(), code), hn::Set(F32(), HadamardSteps<kBits>::kMiddle));
  }
};

/// Returns the codes of one vector of y in the lowest bits. The other bits of the low byte are 0.
template <unsigned kBits>
HWY_INLINE Codes codes_of(const float* y, VF32 inverse) {
  using Steps = HadamardSteps<kBits>;
  const VF32 value = hn::Load(F32(), y);
  if constexpr (kBits == 1)
    return hn::Xor(hn::ShiftRight<31>(hn::BitCast(U32(), value)), hn::Set(U32(), 1));
  const VF32 z = fused(value, inverse, hn::Set(F32(), Steps::kMiddle));
  const VF32 most = hn::Set(F32(), Steps::kMaxCode);
  const VF32 clamped = hn::Min(hn::Max(z, hn::Zero(F32())), most);
  return hn::BitCast(U32(), hn::Add(clamped, hn::Set(F32(), kHadamardMagic)));
}

/// Applies T to a block's numbers.
template <unsigned kBits>
HWY_INLINE void rotate_numbers(const BlockCodes& codes, RotationVectors& to) {
  const CodeNumbers<kBits> numbers;
  TERSOR_VECTOR_LOOP
  for (std::size_t k = 0; k < kRotationVectors; ++k) {
    VF32 number[kCodeVectors];
    numbers.of(codes[k], number);
    to[k] = number[0];
  }
  rotate(to);
}

#endif

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_HADAMARD_CODES_INL_H_
