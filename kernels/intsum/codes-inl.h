// Conversion of intsum's codes between vectors of i32 and 16-bit accumulators (two per word) or
// 32-bit accumulators. 8-bit accumulators use int8's code.
#if defined(TERSOR_KERNELS_INTSUM_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_INTSUM_CODES_INL_H_
#undef TERSOR_KERNELS_INTSUM_CODES_INL_H_
#else
#define TERSOR_KERNELS_INTSUM_CODES_INL_H_
#endif

#include "kernels/intsum/formulas.h"
#include "kernels/quantize/loops-inl.h"

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// Whole words. The last word may hold a single code.
template <>
constexpr std::size_t code_bytes<IntsumPairs>(std::size_t count) {
  return (count + 1) / 2 * sizeof(std::uint32_t);
}

template <>
struct VectorCodes<IntsumPairs> : IntegerVectorCodes {
#if TERSOR_PORTABLE

  static HWY_INLINE void store(const VI32 (&codes)[kVectors], std::byte* block, std::size_t index) {
    for (std::size_t k = 0; k < kVectors; k += 2) {
      const auto low = static_cast<std::uint32_t>(hn::GetLane(codes[k]));
      const auto high = static_cast<std::uint32_t>(hn::GetLane(codes[k + 1]));
      const std::uint32_t word = low + (high << 16);
      std::memcpy(block + 2 * (index + k), &word, sizeof word);
    }
  }

  static HWY_INLINE void load(const std::byte* block, std::size_t index, VF32 (&values)[kVectors]) {
    for (std::size_t k = 0; k < kVectors; k += 2) {
      std::uint32_t word;
      std::memcpy(&word, block + 2 * (index + k), sizeof word);
      word += kPairOffset;
      values[k] = hn::Set(F32(), static_cast<float>(static_cast<int>(word & 0xffff) - 0x8000));
      values[k + 1] = hn::Set(F32(), static_cast<float>(static_cast<int>(word >> 16) - 0x8000));
    }
  }

#else

  using Halves = hn::Rebind<std::int16_t, I32>;
  using Pairs = hn::Repartition<std::uint32_t, Halves>;

  /// Stores codes with an offset of 2^15, which prevents borrows between neighbouring codes. A
  /// word-wise subtraction then removes the offsets.
  static HWY_INLINE void store(const VI32 (&codes)[kVectors], std::byte* block, std::size_t index) {
    const auto sign = hn::Set(Halves(), std::int16_t{-0x8000});
    auto* words = reinterpret_cast<std::uint32_t*>(block) + index / 2;
    for (std::size_t k = 0; k < kVectors; ++k) {
      const auto halves = hn::Xor(hn::DemoteTo(Halves(), codes[k]), sign);
      const auto pairs = hn::Sub(hn::BitCast(Pairs(), halves), hn::Set(Pairs(), kPairOffset));
      hn::StoreU(pairs, Pairs(), words + k * kLanes / 2);
    }
  }

  static HWY_INLINE void load(const std::byte* block, std::size_t index, VF32 (&values)[kVectors]) {
    const auto sign = hn::Set(Halves(), std::int16_t{-0x8000});
    const auto* words = reinterpret_cast<const std::uint32_t*>(block) + index / 2;
    for (std::size_t k = 0; k < kVectors; ++k) {
      const auto pairs =
          hn::Add(hn::LoadU(Pairs(), words + k * kLanes / 2), hn::Set(Pairs(), kPairOffset));
      const auto halves = hn::Xor(hn::BitCast(Halves(), pairs), sign);
      values[k] = hn::ConvertTo(F32(), hn::PromoteTo(I32(), halves));
    }
  }

#endif
};

template <>
struct VectorCodes<IntsumWords> : IntegerVectorCodes {
  static HWY_INLINE void store(const VI32 (&codes)[kVectors], std::byte* block, std::size_t index) {
    auto* words = reinterpret_cast<std::int32_t*>(block) + index;
    for (std::size_t k = 0; k < kVectors; ++k) hn::StoreU(codes[k], I32(), words + k * kLanes);
  }

  static HWY_INLINE void load(const std::byte* block, std::size_t index, VF32 (&values)[kVectors]) {
    const auto* words = reinterpret_cast<const std::int32_t*>(block) + index;
    for (std::size_t k = 0; k < kVectors; ++k)
      values[k] = hn::ConvertTo(F32(), hn::LoadU(I32(), words + k * kLanes));
  }
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_INTSUM_CODES_INL_H_
