// Floats of four and eight bits as vectors, for one instruction set.
#if defined(TERSOR_KERNELS_QUANTIZE_SMALL_FLOATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_QUANTIZE_SMALL_FLOATS_INL_H_
#undef TERSOR_KERNELS_QUANTIZE_SMALL_FLOATS_INL_H_
#else
#define TERSOR_KERNELS_QUANTIZE_SMALL_FLOATS_INL_H_
#endif

#include "kernels/quantize/small_floats.h"
#include "kernels/quantize/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// The formulas of small_floats.h. A code is the number of a signed integer of Small::kBits bits.
template <class Small>
struct SmallVectorCodes {
  static HWY_INLINE Coded nearest(VF32 p, VF32 inverse) {
    constexpr int kDroppedBits = 23 - Small::kDigits;
    const VI32 sign = hn::And(hn::BitCast(I32(), p), hn::Set(I32(), INT32_MIN));
    const VF32 clamped = hn::Min(hn::Abs(hn::Mul(p, inverse)), hn::Set(F32(), Small::kLargest));
    const VI32 min_normal = hn::Set(I32(), kMinNormalBits);
    const VI32 power =
        hn::Max(hn::And(hn::BitCast(I32(), clamped), hn::Set(I32(), kInfinity)), min_normal);
    const VF32 magic = hn::BitCast(F32(), hn::Add(power, hn::Set(I32(), kDroppedBits << 23)));
    const VF32 sum = hn::Add(clamped, magic);
    const VI32 digits = hn::Sub(hn::BitCast(I32(), sum), hn::BitCast(I32(), magic));
    const VI32 magnitude =
        hn::Add(hn::ShiftRight<kDroppedBits>(hn::Sub(power, min_normal)), digits);
    const VF32 value = hn::Sub(sum, magic);
    return {hn::Or(magnitude, hn::ShiftRight<32 - Small::kBits>(sign)),
            hn::Or(value, hn::BitCast(F32(), sign))};
  }

  /// Returns the values of sign-extended codes.
  static HWY_INLINE VF32 values(VI32 codes) {
    const VI32 sign = hn::And(codes, hn::Set(I32(), INT32_MIN));
    const VI32 magnitude = hn::And(codes, hn::Set(I32(), (1 << (Small::kBits - 1)) - 1));
    const VF32 normal = hn::BitCast(F32(), hn::Add(hn::ShiftLeft<23 - Small::kDigits>(magnitude),
                                                   hn::Set(I32(), kMinNormalBits - (1 << 23))));
    const VF32 subnormal =
        hn::Sub(hn::Add(normal, normal), hn::BitCast(F32(), hn::Set(I32(), kMinNormalBits)));
    const auto is_subnormal = hn::Lt(magnitude, hn::Set(I32(), 1 << Small::kDigits));
    VF32 value = hn::IfThenElse(hn::RebindMask(F32(), is_subnormal), subnormal, normal);
    if constexpr (Small::kSpecial < 1u << (Small::kBits - 1)) {
      const auto is_special = hn::Gt(magnitude, hn::Set(I32(), int{Small::kSpecial} - 1));
      const VI32 special = hn::IfThenElseZero(is_special, hn::Set(I32(), kInfinity));
      value = hn::Or(value, hn::BitCast(F32(), special));
    }
    return hn::Or(value, hn::BitCast(F32(), sign));
  }

 private:
  static constexpr std::int32_t kMinNormalBits = kMinNormal<Small>;
  static constexpr std::int32_t kInfinity = kInfinityBits;
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_QUANTIZE_SMALL_FLOATS_INL_H_
