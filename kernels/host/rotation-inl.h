// Blocks of 256 values in registers: the transform T, the tree sum, and random signs for many
// blocks at once. Included once per instruction set.
#if defined(TERSOR_KERNELS_HOST_TURN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_HOST_TURN_INL_H_
#undef TERSOR_KERNELS_HOST_TURN_INL_H_
#else
#define TERSOR_KERNELS_HOST_TURN_INL_H_
#endif

#include "kernels/host/noise-inl.h"
#include "kernels/host/simd-inl.h"
#include "kernels/scalar/rotation.h"

#include <algorithm>
#include <cstring>

// Put before loops over the vectors of a block, which are registers if enough registers exist.
#undef TERSOR_VECTOR_LOOP
#if HWY_TARGET == HWY_AVX3
#define TERSOR_VECTOR_LOOP TERSOR_UNROLL
#else
#define TERSOR_VECTOR_LOOP
#endif

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

constexpr std::size_t kRotationVectors = kRotationBlock / kLanes;

/// Value i is in lane i mod kLanes of vector i / kLanes.
using RotationVectors = VF32[kRotationVectors];

#if HWY_TARGET == HWY_AVX3
HWY_INLINE VF32 swapped_blocks(VF32 value) { return hn::SwapAdjacentBlocks(value); }
#else
HWY_INLINE VF32 swapped_blocks(VF32 value) { return value; }
#endif

/// Lane i receives lane i XOR kDistance.
template <std::size_t kDistance>
HWY_INLINE VF32 swapped(VF32 value) {
#if TERSOR_PORTABLE
  static_assert(kDistance < kLanes, "portable code has one lane");
  return value;
#else
  if constexpr (kDistance == 1) return hn::Shuffle2301(value);
  if constexpr (kDistance == 2) return hn::Shuffle1032(value);
  if constexpr (kDistance == 4 && kLanes == 16) return swapped_blocks(value);
  return hn::ConcatLowerUpper(F32(), value, value);
#endif
}

/// Number of vectors rotated in registers at once.
constexpr std::size_t kRotationRadix = HWY_TARGET == HWY_AVX3 ? 16 : 8;

/// (x_i, x_{i + h}) ← (x_i + x_{i + h}, x_i − x_{i + h}) for h = kDistance, 2 · kDistance, ...
/// below kLanes: pairs within a vector. Products with 1 and −1 are exact, so fma rounds like the
/// sum.
template <std::size_t kDistance, std::size_t kCount>
HWY_INLINE void rotate_within(VF32 (&x)[kCount]) {
  if constexpr (kDistance < kLanes) {
    const VU32 upper = hn::And(hn::Iota(U32(), 0), hn::Set(U32(), kDistance));
    const VF32 one = hn::Set(F32(), 1.0f);
    const VF32 sign =
        hn::IfThenElse(hn::Eq(hn::BitCast(F32(), upper), hn::Zero(F32())), one, hn::Neg(one));
    TERSOR_UNROLL
    for (std::size_t k = 0; k < kCount; ++k) x[k] = fused(x[k], sign, swapped<kDistance>(x[k]));
    rotate_within<2 * kDistance>(x);
  }
}

/// Like rotate_within, for pairs of vectors.
template <std::size_t kDistance, std::size_t kCount>
HWY_INLINE void rotate_between(VF32 (&x)[kCount]) {
  if constexpr (kDistance < kCount) {
    TERSOR_UNROLL
    for (std::size_t pair = 0; pair < kCount / 2; ++pair) {
      const std::size_t k = pair / kDistance * 2 * kDistance + pair % kDistance;
      const VF32 low = x[k], high = x[k + kDistance];
      x[k] = hn::Add(low, high);
      x[k + kDistance] = hn::Sub(low, high);
    }
    rotate_between<2 * kDistance>(x);
  }
}

/// Rotates vectors with stride kStride: all pairs among kRotationRadix vectors, then larger
/// strides.
template <std::size_t kStride>
HWY_INLINE void rotate_from(RotationVectors& x) {
  if constexpr (kStride < kRotationVectors) {
    constexpr std::size_t kCount = std::min(kRotationRadix, kRotationVectors / kStride);
    TERSOR_VECTOR_LOOP
    for (std::size_t group = 0; group < kRotationVectors / kCount; ++group) {
      const std::size_t first = group / kStride * kStride * kCount + group % kStride;
      VF32 part[kCount];
      TERSOR_UNROLL
      for (std::size_t k = 0; k < kCount; ++k) part[k] = x[first + k * kStride];
      if constexpr (kStride == 1) rotate_within<1>(part);
      rotate_between<1>(part);
      TERSOR_UNROLL
      for (std::size_t k = 0; k < kCount; ++k) x[first + k * kStride] = part[k];
    }
    rotate_from<kStride * kCount>(x);
  }
}

/// The transform T.
HWY_INLINE void rotate(RotationVectors& x) { rotate_from<1>(x); }

template <std::size_t kDistance>
HWY_INLINE VF32 tree_sum_within(VF32 sum) {
  if constexpr (kDistance == 0)
    return sum;
  else
    return tree_sum_within<kDistance / 2>(hn::Add(sum, swapped<kDistance>(sum)));
}

/// Returns Σ of(x_i), summed as a tree.
template <class Of>
HWY_INLINE float tree_sum(const RotationVectors& x, const Of& of) {
  VF32 sum[kRotationVectors / 2];
  TERSOR_VECTOR_LOOP
  for (std::size_t k = 0; k < kRotationVectors / 2; ++k)
    sum[k] = hn::Add(of(x[k]), of(x[k + kRotationVectors / 2]));
  TERSOR_VECTOR_LOOP
  for (std::size_t half = kRotationVectors / 4; half != 0; half /= 2) {
    TERSOR_VECTOR_LOOP
    for (std::size_t k = 0; k < half; ++k) sum[k] = hn::Add(sum[k], sum[k + half]);
  }
  return hn::GetLane(tree_sum_within<kLanes / 2>(sum[0]));
}

/// Returns the bits of vector k of a block's 256 bits, in the lowest bits.
HWY_INLINE std::uint32_t bits_of_vector(const std::uint8_t* block, std::size_t k) {
  if constexpr (kLanes == 16) {
    std::uint16_t bits;
    std::memcpy(&bits, block + 2 * k, sizeof bits);
    return bits;
  }
  return block[k * kLanes / 8] >> (k * kLanes % 8);
}

/// Applies the random signs to vector k of a block.
HWY_INLINE VF32 flipped(VF32 value, const std::uint8_t* signs, std::size_t k) {
  const std::uint32_t bits = bits_of_vector(signs, k);
#if HWY_TARGET == HWY_AVX3
  const __m512i raw = _mm512_castps_si512(value.raw);
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  return VF32{
      _mm512_castsi512_ps(_mm512_mask_xor_epi32(raw, static_cast<__mmask16>(bits), raw, sign))};
#elif TERSOR_PORTABLE
  return hn::Set(F32(), float_of(bits_of(hn::GetLane(value)) ^ bits << 31));
#else
  const VU32 top = hn::Shl(hn::Set(U32(), bits), hn::Sub(hn::Set(U32(), 31), hn::Iota(U32(), 0)));
  const VU32 sign = hn::And(top, hn::Set(U32(), 0x80000000u));
  return hn::BitCast(F32(), hn::Xor(hn::BitCast(U32(), value), sign));
#endif
}

constexpr std::size_t kSignBytes = kRotationBlock / 8;  // per block

/// The signs of consecutive blocks. Signs are generated for 32 blocks at a time, on first use.
class BlockSigns {
 public:
  explicit BlockSigns(const Signs& signs)
      : signs_(signs), keys_{RoundKeys(kSignKey), RoundKeys(kSignKey + 1)} {}

  /// Returns 256 bits for the block that begins at value `first` of the range. The bits of the next
  /// blocks follow, up to a multiple of 32 blocks.
  HWY_INLINE const std::uint8_t* at(std::size_t first) {
    const std::size_t block = first / kRotationBlock;
    if (HWY_UNLIKELY(block / kGroup != group_)) fill(block / kGroup);
    return bytes_ + block % kGroup * kSignBytes;
  }

 private:
  static constexpr std::size_t kGroup = 32;  // blocks

#if TERSOR_PORTABLE

  HWY_NOINLINE void fill(std::size_t group) {
    group_ = group;
    for (std::size_t block = 0; block < kGroup; ++block)
      for (unsigned half = 0; half < 2; ++half) {
        const PhiloxWords words = sign_words(
            signs_, signs_.first_index + (group * kGroup + block) * kRotationBlock, half);
        std::memcpy(bytes_ + block * kSignBytes + half * sizeof words, &words, sizeof words);
      }
  }

#else

  HWY_NOINLINE void fill(std::size_t group) {
    group_ = group;
    const VU64 offsets = hn::ShiftLeft<8>(hn::Iota(U64(), 0));
    constexpr std::size_t kCounters = hn::MaxLanes(U64());
    for (std::size_t block = 0; block < kGroup; block += kCounters) {
      const std::uint64_t first = signs_.first_index + (group * kGroup + block) * kRotationBlock;
      const VU64 index = hn::Add(hn::Set(U64(), first), offsets);
      const VectorWords counter = {{index, hn::ShiftRight<32>(index), hn::Set(U64(), signs_.step),
                                    hn::Set(U64(), signs_.parameter)}};
      const VectorWords low = philox(counter, keys_[0]), high = philox(counter, keys_[1]);
      auto* to = reinterpret_cast<std::uint64_t*>(bytes_ + block * kSignBytes);
      hn::StoreInterleaved4(pair(low, 0), pair(low, 2), pair(high, 0), pair(high, 2), U64(), to);
    }
  }

  /// Returns words w and w + 1 of each counter.
  HWY_INLINE static VU64 pair(const VectorWords& words, std::size_t w) {
    return hn::BitCast(U64(), hn::OddEven(hn::BitCast(U32(), hn::ShiftLeft<32>(words.word[w + 1])),
                                          hn::BitCast(U32(), words.word[w])));
  }

#endif

  const Signs signs_;
  const RoundKeys keys_[2];
  std::size_t group_ = ~std::size_t{0};
  alignas(64) std::uint8_t bytes_[kGroup * kSignBytes];
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_HOST_TURN_INL_H_
