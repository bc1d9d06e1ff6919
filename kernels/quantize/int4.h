// int4: 4-bit codes in [-7, 7], two codes per byte, one scale per 128 values.
#ifndef TERSOR_KERNELS_QUANTIZE_INT4_H_
#define TERSOR_KERNELS_QUANTIZE_INT4_H_

#include "kernels/quantize/formulas.h"

#include <tersor/codecs/int4.h>

#include <string_view>

#if defined(__CUDACC__)
#include "kernels/quantize/rows.cuh"
#endif

namespace tersor::kernels {

struct Int4Format : QuantizeFormat<Int4Layout> {
  static constexpr std::string_view kName = "int4";
  static constexpr std::string_view kSummary =
      "four bits per value, a scale per 128 values (QSGD with absmax scaling)";
  static constexpr std::uint16_t kId = kInt4CodecId;
  static constexpr float kLevels = 7;
};

#if defined(__CUDACC__)

template <>
struct RowCodes<Int4Format> : IntegerRowCodes<Int4Format> {
  static constexpr bool kShifted = true;

  /// Packs nibbles by Horner's rule, biased by 8 to avoid borrows between nibbles.
  template <unsigned kByte, unsigned kRow>
  TERSOR_DEVICE static RowBytes<kRow / 2> pack(const std::uint32_t (&words)[kRow]) {
    std::uint32_t nibbles = 0;
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i) nibbles = nibbles * 16 + words[kRow - 1 - i];
    nibbles = (nibbles + (0x88888888u - 0x11111111u * kSumBase<kByte>)) ^ 0x88888888u;
    RowBytes<kRow / 2> row;
    static_assert(sizeof row <= sizeof nibbles);
    std::memcpy(&row, &nibbles, sizeof row);
    return row;
  }

  template <unsigned kRow>
  TERSOR_DEVICE static void values(const RowBytes<kRow / 2>& row, float (&values)[kRow]) {
    std::uint32_t nibbles = 0;
    std::memcpy(&nibbles, &row, sizeof row);
    nibbles ^= 0x88888888u;
    const std::uint32_t half[2] = {nibbles & 0x0f0f0f0fu, nibbles >> 4 & 0x0f0f0f0fu};
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i) values[i] = float_of_byte<8>(half[i % 2], i / 2);
  }
};

#endif

}  // namespace tersor::kernels

#endif  // TERSOR_KERNELS_QUANTIZE_INT4_H_

#ifdef TERSOR_VECTORS

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// Codes of four bits, packed as signed integers.
struct NibbleCodes {
#if HWY_TARGET == HWY_AVX3

  /// Packs pairs of codes into bytes: (even + 8) + 16 · (odd + 8). The XOR then turns the offset of
  /// 8 in both nibbles into a sign.
  static HWY_INLINE void store(const VI32 (&codes)[kVectors], std::byte* block, std::size_t index) {
    const __m512i eight = _mm512_set1_epi8(8);
    const __m512i weights = _mm512_set1_epi16(0x1001);
    const __m512i low = pack4(codes[0], codes[1], codes[2], codes[3]);
    const __m512i high = pack4(codes[4], codes[5], codes[6], codes[7]);
    const __m512i first = _mm512_maddubs_epi16(_mm512_add_epi8(low, eight), weights);
    const __m512i second = _mm512_maddubs_epi16(_mm512_add_epi8(high, eight), weights);
    const __m512i lanes = _mm512_packus_epi16(first, second);
    const __m512i order =
        _mm512_set_epi16(31, 23, 15, 7, 30, 22, 14, 6, 29, 21, 13, 5, 28, 20, 12, 4,  //
                         27, 19, 11, 3, 26, 18, 10, 2, 25, 17, 9, 1, 24, 16, 8, 0);
    const __m512i signs = _mm512_set1_epi8(static_cast<char>(0x88));
    _mm512_storeu_si512(block + index / 2,
                        _mm512_permutexvar_epi16(order, _mm512_xor_si512(lanes, signs)));
  }

  /// Copies each word of eight nibbles to eight lanes. Each lane shifts its nibble down and looks
  /// up the value. The lookup ignores higher bits.
  template <class Numbers>
  static HWY_INLINE void load(const std::byte* block, std::size_t index, VF32 (&values)[kVectors]) {
    const __m512i word = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i shift =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512 value = Numbers::table();
    const __m512i words = _mm512_loadu_si512(block + index / 2);
    for (int k = 0; k < static_cast<int>(kVectors); ++k) {
      const __m512i nibble_index = _mm512_add_epi32(word, _mm512_set1_epi32(2 * k));
      const __m512i nibble =
          _mm512_srlv_epi32(_mm512_permutexvar_epi32(nibble_index, words), shift);
      values[k] = VF32{_mm512_permutexvar_ps(nibble, value)};
    }
  }

#else

#if HWY_TARGET == HWY_AVX2

  /// Uses the same algorithm as AVX-512.
  static HWY_INLINE void store(const VI32 (&codes)[kVectors], std::byte* block, std::size_t index) {
    const __m256i eight = _mm256_set1_epi8(8);
    const __m256i weights = _mm256_set1_epi16(0x1001);
    const __m256i low = pack4(codes[0], codes[1], codes[2], codes[3]);
    const __m256i high = pack4(codes[4], codes[5], codes[6], codes[7]);
    const __m256i first = _mm256_maddubs_epi16(_mm256_add_epi8(low, eight), weights);
    const __m256i second = _mm256_maddubs_epi16(_mm256_add_epi8(high, eight), weights);
    const __m256i lanes = _mm256_permute4x64_epi64(_mm256_packus_epi16(first, second), 0xd8);
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    const __m256i signs = _mm256_set1_epi8(static_cast<char>(0x88));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(block + index / 2),
                        _mm256_xor_si256(_mm256_shuffle_epi8(lanes, order), signs));
  }

#else

  static HWY_INLINE void store(const VI32 (&codes)[kVectors], std::byte* block, std::size_t index) {
    std::byte wide[kGroup];
    store_bytes(codes, wide);
    for (std::size_t i = 0; i < kGroup; i += 2)
      block[(index + i) / 2] = (wide[i] & std::byte{0xf}) | wide[i + 1] << 4;
  }

#endif

#if TERSOR_PORTABLE

  template <class Numbers>
  static HWY_INLINE void load(const std::byte* block, std::size_t index, VF32 (&values)[kVectors]) {
    for (std::size_t k = 0; k < kVectors; ++k) {
      const auto byte = static_cast<std::uint32_t>(block[(index + k) / 2]);
      const std::uint32_t nibble = byte >> ((index + k) % 2 * 4) & 0xf;
      values[k] = Numbers::of(hn::Set(I32(), static_cast<std::int32_t>(nibble ^ 8) - 8));
    }
  }

#else

  /// Copies a word of 4 or 8 nibbles to all lanes. Each lane shifts its nibble to the top, and then
  /// back down with sign extension.
  template <class Numbers>
  static HWY_INLINE void load(const std::byte* block, std::size_t index, VF32 (&values)[kVectors]) {
    const VU32 shift = hn::Sub(hn::Set(U32(), 28), hn::ShiftLeft<2>(hn::Iota(U32(), 0)));
    for (std::size_t k = 0; k < kVectors; ++k) {
      std::uint32_t word = 0;
      std::memcpy(&word, block + (index + k * kLanes) / 2, kLanes / 2);
      const VI32 top = hn::BitCast(I32(), hn::Shl(hn::Set(U32(), word), shift));
      values[k] = Numbers::of(hn::ShiftRight<28>(top));
    }
  }

#endif

#endif
};

struct Int4Numbers {
#if HWY_TARGET == HWY_AVX3
  static HWY_INLINE __m512 table() {
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
  }
#endif
  static HWY_INLINE VF32 of(VI32 codes) { return hn::ConvertTo(F32(), codes); }
};

template <>
struct VectorCodes<Int4Format> : IntegerVectorCodes, NibbleCodes {
  static HWY_INLINE void load(const std::byte* block, std::size_t index, VF32 (&values)[kVectors]) {
    NibbleCodes::load<Int4Numbers>(block, index, values);
  }
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_VECTORS

#ifdef TERSOR_QUANTIZE_FORMAT
TERSOR_QUANTIZE_FORMAT(Int4Format)
#endif
