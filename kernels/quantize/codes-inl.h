// Codes between vectors of i32 and the bytes of a payload: whole bytes for int8, nibbles for int4.
#if defined(TERSOR_KERNELS_QUANTIZE_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_QUANTIZE_CODES_INL_H_
#undef TERSOR_KERNELS_QUANTIZE_CODES_INL_H_
#else
#define TERSOR_KERNELS_QUANTIZE_CODES_INL_H_
#endif

#include "kernels/host/simd-inl.h"
#include "kernels/quantize/int4.h"
#include "kernels/quantize/int8.h"

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

constexpr std::size_t kVectors = 8;                // that are packed or unpacked at once
constexpr std::size_t kGroup = kVectors * kLanes;  // values in them

/// Writes kGroup codes of a block from `index` on: a byte each, or two to a byte.
template <class Format>
HWY_INLINE void store_codes(const VI32 (&codes)[kVectors], std::byte* block, std::size_t index);

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2

// Intrinsics, since Highway 1.0.3 has neither the demotion of i16 pairs nor the sum of pairs of
// bytes. Codes fit, so saturating packs do not change them, but they work in lanes of 16 bytes: of
// vectors a, b, c, d they give a0-3 b0-3 c0-3 d0-3 a4-7 …, which a permutation then puts in order.

#if HWY_TARGET == HWY_AVX3

using Bytes = __m512i;

HWY_INLINE Bytes pack4(VI32 a, VI32 b, VI32 c, VI32 d) {
  return _mm512_packs_epi16(_mm512_packs_epi32(a.raw, b.raw), _mm512_packs_epi32(c.raw, d.raw));
}

HWY_INLINE void store_in_order(Bytes packed, std::byte* target) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(target, _mm512_permutexvar_epi32(order, packed));
}

/// Pairs of codes become bytes: (even + 8) + 16 · (odd + 8), where the top bits of both nibbles are
/// turned from an offset of 8 into a sign.
HWY_INLINE void store_nibbles(Bytes low, Bytes high, std::byte* target) {
  const __m512i eight = _mm512_set1_epi8(8);
  const __m512i weights = _mm512_set1_epi16(0x1001);
  const __m512i first = _mm512_maddubs_epi16(_mm512_add_epi8(low, eight), weights);
  const __m512i second = _mm512_maddubs_epi16(_mm512_add_epi8(high, eight), weights);
  const __m512i lanes = _mm512_packus_epi16(first, second);
  const __m512i order = _mm512_set_epi16(31, 23, 15, 7, 30, 22, 14, 6, 29, 21, 13, 5, 28, 20, 12, 4,
                                         27, 19, 11, 3, 26, 18, 10, 2, 25, 17, 9, 1, 24, 16, 8, 0);
  const __m512i signs = _mm512_set1_epi8(static_cast<char>(0x88));
  _mm512_storeu_si512(target, _mm512_permutexvar_epi16(order, _mm512_xor_si512(lanes, signs)));
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

/// As for AVX-512.
HWY_INLINE void store_nibbles(Bytes low, Bytes high, std::byte* target) {
  const __m256i eight = _mm256_set1_epi8(8);
  const __m256i weights = _mm256_set1_epi16(0x1001);
  const __m256i first = _mm256_maddubs_epi16(_mm256_add_epi8(low, eight), weights);
  const __m256i second = _mm256_maddubs_epi16(_mm256_add_epi8(high, eight), weights);
  const __m256i lanes = _mm256_permute4x64_epi64(_mm256_packus_epi16(first, second), 0xd8);
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  const __m256i signs = _mm256_set1_epi8(static_cast<char>(0x88));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target),
                      _mm256_xor_si256(_mm256_shuffle_epi8(lanes, order), signs));
}

#endif

template <>
HWY_INLINE void store_codes<Int8Format>(const VI32 (&codes)[kVectors], std::byte* block,
                                        std::size_t index) {
  store_in_order(pack4(codes[0], codes[1], codes[2], codes[3]), block + index);
  store_in_order(pack4(codes[4], codes[5], codes[6], codes[7]), block + index + 4 * kLanes);
}

template <>
HWY_INLINE void store_codes<Int4Format>(const VI32 (&codes)[kVectors], std::byte* block,
                                        std::size_t index) {
  store_nibbles(pack4(codes[0], codes[1], codes[2], codes[3]),
                pack4(codes[4], codes[5], codes[6], codes[7]), block + index / 2);
}

#else

template <>
HWY_INLINE void store_codes<Int8Format>(const VI32 (&codes)[kVectors], std::byte* block,
                                        std::size_t index) {
  const hn::Rebind<std::int8_t, I32> narrow;
  auto* target = reinterpret_cast<std::int8_t*>(block) + index;
  for (std::size_t k = 0; k < kVectors; ++k)
    hn::StoreU(hn::DemoteTo(narrow, codes[k]), narrow, target + k * kLanes);
}

template <>
HWY_INLINE void store_codes<Int4Format>(const VI32 (&codes)[kVectors], std::byte* block,
                                        std::size_t index) {
  std::byte wide[kGroup];
  store_codes<Int8Format>(codes, wide, 0);
  for (std::size_t i = 0; i < kGroup; i += 2)
    block[(index + i) / 2] = static_cast<std::byte>(
        pack_nibbles(static_cast<std::int8_t>(wide[i]), static_cast<std::int8_t>(wide[i + 1])));
}

#endif

/// kGroup codes of a block from `index` on, as f32.
template <class Format>
HWY_INLINE void load_codes(const std::byte* block, std::size_t index, VF32 (&codes)[kVectors]);

template <>
HWY_INLINE void load_codes<Int8Format>(const std::byte* block, std::size_t index,
                                       VF32 (&codes)[kVectors]) {
  const hn::Rebind<std::int8_t, I32> narrow;
  const auto* bytes = reinterpret_cast<const std::int8_t*>(block) + index;
  for (std::size_t k = 0; k < kVectors; ++k)
    codes[k] = hn::ConvertTo(F32(), hn::PromoteTo(I32(), hn::LoadU(narrow, bytes + k * kLanes)));
}

#if HWY_TARGET == HWY_AVX3

/// Each word of eight nibbles goes to eight lanes; each lane shifts its nibble down and looks its
/// value up, for which the bits above it do not matter.
template <>
HWY_INLINE void load_codes<Int4Format>(const std::byte* block, std::size_t index,
                                       VF32 (&codes)[kVectors]) {
  const __m512i word = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m512i shift = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  const __m512 value = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
  const __m512i words = _mm512_loadu_si512(block + index / 2);
  for (int k = 0; k < static_cast<int>(kVectors); ++k) {
    const __m512i place = _mm512_add_epi32(word, _mm512_set1_epi32(2 * k));
    const __m512i nibble = _mm512_srlv_epi32(_mm512_permutexvar_epi32(place, words), shift);
    codes[k] = VF32{_mm512_permutexvar_ps(nibble, value)};
  }
}

#elif TERSOR_PORTABLE

template <>
HWY_INLINE void load_codes<Int4Format>(const std::byte* block, std::size_t index,
                                       VF32 (&codes)[kVectors]) {
  for (std::size_t k = 0; k < kVectors; ++k) {
    const auto byte = static_cast<std::uint32_t>(block[(index + k) / 2]);
    const std::int32_t code = unpack_nibble(byte >> ((index + k) % 2 * 4));
    codes[k] = hn::Set(F32(), static_cast<float>(code));
  }
}

#else

/// A word of 4 or 8 nibbles goes to all lanes; each moves its nibble to the top and, with the sign,
/// back down.
template <>
HWY_INLINE void load_codes<Int4Format>(const std::byte* block, std::size_t index,
                                       VF32 (&codes)[kVectors]) {
  const VU32 shift = hn::Sub(hn::Set(U32(), 28), hn::ShiftLeft<2>(hn::Iota(U32(), 0)));
  for (std::size_t k = 0; k < kVectors; ++k) {
    std::uint32_t word = 0;
    std::memcpy(&word, block + (index + k * kLanes) / 2, kLanes / 2);
    const VI32 top = hn::BitCast(I32(), hn::Shl(hn::Set(U32(), word), shift));
    codes[k] = hn::ConvertTo(F32(), hn::ShiftRight<28>(top));
  }
}

#endif

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_QUANTIZE_CODES_INL_H_
