// Helpers for all CPU kernels in addition to Highway's operations: the f32 vector type, a
// multiply-add that is always fused, and loads and stores that convert from and to f32. Included
// once per instruction set, after <hwy/highway.h>.
#if defined(TERSOR_KERNELS_HOST_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_HOST_SIMD_INL_H_
#undef TERSOR_KERNELS_HOST_SIMD_INL_H_
#else
#define TERSOR_KERNELS_HOST_SIMD_INL_H_
#endif

#include "kernels/scalar/bits.h"
#include "kernels/scalar/convert.h"

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Portable code processes one value at a time, whichever baseline Highway chose for the compiler.
#undef TERSOR_PORTABLE
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
#define TERSOR_PORTABLE 1
using F32 = hn::CappedTag<float, 1>;
#else
#define TERSOR_PORTABLE 0
using F32 = hn::CappedTag<float, 16>;
#endif
using U32 = hn::Rebind<std::uint32_t, F32>;
using I32 = hn::Rebind<std::int32_t, F32>;
using VF32 = hn::Vec<F32>;
using VU32 = hn::Vec<U32>;
using VI32 = hn::Vec<I32>;

constexpr std::size_t kLanes = hn::MaxLanes(F32());  // values per VF32: 1, 4, 8 or 16

/// a · b + c, rounded once. Highway's MulAdd is not fused on hardware without a fused instruction.
HWY_INLINE VF32 fused(VF32 a, VF32 b, VF32 c) {
#if TERSOR_PORTABLE
  return hn::Set(F32(), fused_multiply_add(hn::GetLane(a), hn::GetLane(b), hn::GetLane(c)));
#else
  return hn::MulAdd(a, b, c);
#endif
}

HWY_INLINE VF32 load_values(const float* values) { return hn::LoadU(F32(), values); }

HWY_INLINE VF32 load_values(const Bf16* values) {
  const hn::Rebind<std::uint16_t, F32> narrow;
  const auto bits = hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(values));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), bits)));
}

HWY_INLINE VF32 load_values(const F16* values) {
#if TERSOR_PORTABLE
  return hn::Set(F32(), to_f32(*values));
#else
  const hn::Rebind<std::uint16_t, F32> narrow;
  const auto bits = hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(values));
  return hn::PromoteTo(F32(), hn::BitCast(hn::Rebind<hwy::float16_t, F32>(), bits));
#endif
}

/// Returns `value` with every NaN replaced by `nan`.
HWY_INLINE VF32 with_nan(VF32 value, std::uint32_t nan) {
  return hn::IfThenElse(hn::Eq(value, value), value, hn::BitCast(F32(), hn::Set(U32(), nan)));
}

/// Returns the bits without sign, which order magnitudes.
HWY_INLINE VI32 keys_of(VF32 values) {
  return hn::And(hn::BitCast(I32(), values), hn::Set(I32(), 0x7fffffff));
}
/// Returns a bound for Gt: a key reaches `key` if the key is greater than the bound.
HWY_INLINE VI32 gt_bound(std::uint32_t key) {
  return hn::Set(I32(), static_cast<std::int32_t>(key - 1));
}

HWY_INLINE void store_values(VF32 value, float* values) { hn::StoreU(value, F32(), values); }

#if !TERSOR_PORTABLE
/// Stores the upper half of each lane.
HWY_INLINE void store_upper(VU32 bits, Bf16* values) {
  const hn::Rebind<std::uint16_t, F32> narrow;
  hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(I32(), hn::ShiftRight<16>(bits))), narrow,
             reinterpret_cast<std::uint16_t*>(values));
}
#endif

/// Rounds to nearest even. NaN becomes 0x7fff. Some Highway versions truncate in DemoteTo.
HWY_INLINE void store_values(VF32 value, Bf16* values) {
#if TERSOR_PORTABLE
  *values = from_f32<Bf16>(hn::GetLane(value));
#else
  const VU32 bits = hn::BitCast(U32(), with_nan(value, 0x7fff0000u));
  const VU32 even = hn::And(hn::ShiftRight<16>(bits), hn::Set(U32(), 1));
  store_upper(bits + even + hn::Set(U32(), 0x7fff), values);
#endif
}

/// Rounds stochastically, with stochastic_bf16.
HWY_INLINE void store_stochastic(VF32 value, VI32 random, Bf16* values) {
#if TERSOR_PORTABLE
  const auto noise = static_cast<std::uint32_t>(hn::GetLane(random));
  *values = from_f32<Bf16>(stochastic_bf16(hn::GetLane(value), noise));
#else
  const VU32 bits = hn::BitCast(U32(), with_nan(value, 0x7fff0000u));
  store_upper(bits + hn::BitCast(U32(), random), values);
#endif
}

/// Rounds to nearest even. NaN becomes 0x7fff, and magnitudes from 65520 become infinite.
HWY_INLINE void store_values(VF32 value, IeeeF16* values) {
#if TERSOR_PORTABLE
  *values = from_f32<IeeeF16>(hn::GetLane(value));
#else
  const hn::Rebind<std::uint16_t, F32> narrow;
  const auto half = hn::DemoteTo(hn::Rebind<hwy::float16_t, F32>(), with_nan(value, 0x7fffffffu));
  hn::StoreU(hn::BitCast(narrow, half), narrow, reinterpret_cast<std::uint16_t*>(values));
#endif
}

/// Rounds after within_f16: finite values stay finite.
HWY_INLINE void store_values(VF32 value, F16* values) {
  const VF32 most = hn::Set(F32(), kF16Max);
  const auto is_finite = hn::Lt(hn::Abs(value), hn::Set(F32(), float_of(kInfinityBits)));
  const VF32 within = hn::Clamp(value, hn::Neg(most), most);
  store_values(hn::IfThenElse(is_finite, within, value), reinterpret_cast<IeeeF16*>(values));
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_HOST_SIMD_INL_H_
