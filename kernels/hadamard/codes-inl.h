// Codes of 1 to 4 bits between vectors in rotated space and planes of bits, for one instruction
// set.
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

/// Bit i: bit kBit of lane i.
template <int kBit>
HWY_INLINE std::uint32_t bits_of_lanes(VU32 lanes) {
#if HWY_TARGET == HWY_AVX3
  return _mm512_test_epi32_mask(lanes.raw, _mm512_set1_epi32(1 << kBit));
#elif HWY_TARGET == HWY_AVX2
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

/// Writes the bits of vector k into a plane. Vectors come in order.
HWY_INLINE void store_bits(std::uint32_t bits, std::uint8_t* plane, std::size_t k) {
  if constexpr (kLanes == 16) {
    // Volatile, or GCC collects the masks of several vectors in a register, which takes longer.
    reinterpret_cast<volatile std::uint16_t*>(plane)[k] = static_cast<std::uint16_t>(bits);
  } else {
    const std::size_t bit = k * kLanes % 8;
    std::uint8_t& byte = plane[k * kLanes / 8];
    byte = static_cast<std::uint8_t>(bit == 0 ? bits : byte | bits << bit);
  }
}

/// The codes of vector k, whose bits are the lowest ones of `codes`.
template <unsigned kBits>
HWY_INLINE void store_codes(VU32 codes, std::uint8_t* planes, std::size_t k) {
  store_bits(bits_of_lanes<0>(codes), planes, k);
  if constexpr (kBits > 1) store_bits(bits_of_lanes<1>(codes), planes + kPlaneBytes, k);
  if constexpr (kBits > 2) store_bits(bits_of_lanes<2>(codes), planes + 2 * kPlaneBytes, k);
  if constexpr (kBits > 3) store_bits(bits_of_lanes<3>(codes), planes + 3 * kPlaneBytes, k);
}

#if HWY_TARGET == HWY_AVX3

/// Lane i: the code of value i of vector k in its lowest bits; those above them may be anything.
template <unsigned kBits, unsigned kPlane = 0>
HWY_INLINE VU32 load_codes(const std::uint8_t* planes, std::size_t k) {
  std::uint32_t word;  // of two vectors
  std::memcpy(&word, planes + kPlane * kPlaneBytes + k / 2 * sizeof word, sizeof word);
  const std::uint32_t first = static_cast<std::uint32_t>(k % 2 * 16) + 32 - kPlane;
  const VU32 places = hn::Iota(U32(), first);  // rotation is modulo 32
  const VU32 bits{_mm512_rorv_epi32(_mm512_set1_epi32(static_cast<int>(word)), places.raw)};
  if constexpr (kPlane + 1 == kBits) {
    return bits;
  } else {
    // Bit kPlane from here, the others from the planes that follow.
    const VU32 rest = load_codes<kBits, kPlane + 1>(planes, k);
    const __m512i mine = _mm512_set1_epi32(1 << kPlane);
    return VU32{_mm512_ternarylogic_epi32(mine, bits.raw, rest.raw, 0xca)};
  }
}

#else

/// Bit kBit of the codes of vector k, as a number in each lane.
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
HWY_INLINE VU32 load_codes(const std::uint8_t* planes, std::size_t k) {
  VU32 codes = load_bit<0>(planes, k);
  if constexpr (kBits > 1) codes = hn::Or(codes, load_bit<1>(planes, k));
  if constexpr (kBits > 2) codes = hn::Or(codes, load_bit<2>(planes, k));
  if constexpr (kBits > 3) codes = hn::Or(codes, load_bit<3>(planes, k));
  return codes;
}

#endif

/// k = code − kMiddle of each code, exact.
template <unsigned kBits>
class CodeNumbers {
 public:
  HWY_INLINE CodeNumbers() {
#if HWY_TARGET == HWY_AVX3
    const VI32 code = hn::And(hn::Iota(I32(), 0), hn::Set(I32(), (1 << kBits) - 1));
    table_ = hn::Sub(hn::ConvertTo(F32(), code), hn::Set(F32(), HadamardSteps<kBits>::kMiddle));
#endif
  }

  /// Bits of `codes` above the code do not matter.
  HWY_INLINE VF32 of(VU32 codes) const {
#if HWY_TARGET == HWY_AVX3
    return VF32{_mm512_permutexvar_ps(codes.raw, table_.raw)};
#else
    const VI32 code = hn::BitCast(I32(), hn::And(codes, hn::Set(U32(), (1u << kBits) - 1)));
    return hn::Sub(hn::ConvertTo(F32(), code), hn::Set(F32(), HadamardSteps<kBits>::kMiddle));
#endif
  }

 private:
#if HWY_TARGET == HWY_AVX3
  // Looked up by the lowest four bits: each code stands there as often as it must.
  VF32 table_;
#endif
};

/// Codes of one vector of y, in the lowest bits; those of the upper half of a byte are 0.
template <unsigned kBits>
HWY_INLINE VU32 codes_of(VF32 y, VF32 inverse) {
  using Steps = HadamardSteps<kBits>;
  if constexpr (kBits == 1)
    return hn::Xor(hn::ShiftRight<31>(hn::BitCast(U32(), y)), hn::Set(U32(), 1));
  const VF32 z = fused(y, inverse, hn::Set(F32(), Steps::kMiddle));
  const VF32 most = hn::Set(F32(), Steps::kMost);
  const VF32 clamped = hn::Min(hn::Max(z, hn::Zero(F32())), most);
  return hn::BitCast(U32(), hn::Add(clamped, hn::Set(F32(), kHadamardMagic)));
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_HADAMARD_CODES_INL_H_
