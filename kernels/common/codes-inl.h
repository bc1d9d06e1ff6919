// Codes between vectors of i32 and the bytes of a payload: whole bytes for int8, nibbles for int4.
#if defined(TERSOR_KERNELS_COMMON_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_COMMON_CODES_INL_H_
#undef TERSOR_KERNELS_COMMON_CODES_INL_H_
#else
#define TERSOR_KERNELS_COMMON_CODES_INL_H_
#endif

#include "kernels/common/simd-inl.h"
#include "kernels/int4/formulas.h"
#include "kernels/int8/formulas.h"

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// Writes 4 · kLanes codes as one byte each. Codes fit, so saturating packs do not change them.
HWY_INLINE void store_codes(VI32 a, VI32 b, VI32 c, VI32 d, std::int8_t* codes) {
#if HWY_TARGET == HWY_AVX3
  // Three packs and one permutation; Highway 1.0.3 has no such demotion of i16.
  const __m512i ab = _mm512_packs_epi32(a.raw, b.raw);
  const __m512i cd = _mm512_packs_epi32(c.raw, d.raw);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(codes, _mm512_permutexvar_epi32(order, _mm512_packs_epi16(ab, cd)));
#elif HWY_TARGET == HWY_AVX2
  const __m256i ab = _mm256_packs_epi32(a.raw, b.raw);
  const __m256i cd = _mm256_packs_epi32(c.raw, d.raw);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), bytes);
#else
  const hn::Rebind<std::int8_t, I32> narrow;
  hn::StoreU(hn::DemoteTo(narrow, a), narrow, codes);
  hn::StoreU(hn::DemoteTo(narrow, b), narrow, codes + kLanes);
  hn::StoreU(hn::DemoteTo(narrow, c), narrow, codes + 2 * kLanes);
  hn::StoreU(hn::DemoteTo(narrow, d), narrow, codes + 3 * kLanes);
#endif
}

#if TERSOR_PORTABLE
constexpr std::size_t kNibbleStep = 2;  // codes that pack_nibbles takes at once
#else
using U16 = hn::Repartition<std::uint16_t, U32>;
constexpr std::size_t kNibbleStep = 4 * kLanes;
#endif

/// kNibbleStep codes as half as many bytes, the even index in the low nibble.
HWY_INLINE void pack_nibbles(const std::int8_t* codes, std::byte* bytes) {
#if TERSOR_PORTABLE
  *bytes = static_cast<std::byte>(kernels::pack_nibbles(codes[0], codes[1]));
#else
  const hn::Rebind<std::uint8_t, U16> narrow;
  const auto pairs = hn::LoadU(U16(), reinterpret_cast<const std::uint16_t*>(codes));
  const auto even = hn::And(pairs, hn::Set(U16(), 0x0f));
  const auto odd = hn::And(hn::ShiftRight<4>(pairs), hn::Set(U16(), 0xf0));
  const auto packed = hn::BitCast(hn::RebindToSigned<U16>(), hn::Or(even, odd));
  hn::StoreU(hn::DemoteTo(narrow, packed), narrow, reinterpret_cast<std::uint8_t*>(bytes));
#endif
}

/// kLanes codes of a block from `index` on, as f32.
template <class Format>
HWY_INLINE VF32 load_codes(const std::byte* block, std::size_t index);

template <>
HWY_INLINE VF32 load_codes<Int8Format>(const std::byte* block, std::size_t index) {
  const hn::Rebind<std::int8_t, I32> narrow;
  const auto* codes = reinterpret_cast<const std::int8_t*>(block) + index;
  return hn::ConvertTo(F32(), hn::PromoteTo(I32(), hn::LoadU(narrow, codes)));
}

/// A word of four bits a lane is copied to its lanes; each moves its nibble to the top and back
/// down, with the sign.
template <>
HWY_INLINE VF32 load_codes<Int4Format>(const std::byte* block, std::size_t index) {
#if TERSOR_PORTABLE
  const auto byte = static_cast<std::uint32_t>(block[index / 2]);
  return hn::Set(F32(), static_cast<float>(unpack_nibble(byte >> (index % 2 * 4))));
#else
  constexpr std::size_t kWord = kLanes < 8 ? kLanes : 8;  // nibbles in a word
  std::uint32_t words[kLanes / kWord] = {};
  std::memcpy(words, block + index / 2, kLanes / 2);
#if HWY_TARGET == HWY_AVX3
  const __m512i both = _mm512_mask_set1_epi32(_mm512_set1_epi32(words[0]), 0xff00, words[1]);
  const VU32 copies{both};
#else
  const VU32 copies = hn::Set(U32(), words[0]);
#endif
  const VU32 lane = hn::And(hn::Iota(U32(), 0), hn::Set(U32(), kWord - 1));
  const VU32 shift = hn::Sub(hn::Set(U32(), 28), hn::ShiftLeft<2>(lane));
  const VI32 codes = hn::ShiftRight<28>(hn::BitCast(I32(), hn::Shl(copies, shift)));
  return hn::ConvertTo(F32(), codes);
#endif
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_COMMON_CODES_INL_H_
