// Implements kernels/intsum/accumulators.h, once per instruction set.

#include "kernels/intsum/accumulators.h"

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/intsum/accumulators.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/host/noise-inl.h"
#include "kernels/host/tiles-inl.h"
#include "kernels/scalar/float_mode.h"

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

constexpr std::size_t kTile = 256;  // values

template <typename Accumulator>
HWY_INLINE void store_accumulators(VI32 codes, Accumulator* accumulators) {
  const hn::Rebind<Accumulator, I32> tag;
  if constexpr (sizeof(Accumulator) == 4)
    hn::StoreU(codes, tag, accumulators);
  else
    hn::StoreU(hn::DemoteTo(tag, codes), tag, accumulators);
}

template <typename Accumulator>
HWY_INLINE VI32 load_accumulators(const Accumulator* accumulators) {
  const hn::Rebind<Accumulator, I32> tag;
  if constexpr (sizeof(Accumulator) == 4)
    return hn::LoadU(tag, accumulators);
  else
    return hn::PromoteTo(I32(), hn::LoadU(tag, accumulators));
}

/// Rounds up if the fraction plus a random number in (0, 1) reaches 1. The random number has 16
/// random bits plus a half bit. The fraction is exact in f32. The sum of value and random number is
/// not used, because f32 would round some sums up for codes of 9 or more bits.
HWY_INLINE VI32 rounded(VF32 value, VI32 random) {
  const VF32 shift =
      fused(hn::ConvertTo(F32(), random), hn::Set(F32(), 0x1p-16f), hn::Set(F32(), 0x1p-17f));
  const VF32 one = hn::Set(F32(), 1), floor = hn::Floor(value);
  const auto up = hn::Ge(hn::Add(hn::Sub(value, floor), shift), one);
  return hn::ConvertTo(I32(), hn::IfThenElse(up, hn::Add(floor, one), floor));
}

template <typename Accumulator>
EncodingCounts encode_as(const float* values, std::size_t count, const AccumulatorFormat& format,
                         const Noise& noise, std::byte* accumulators) {
  const VF32 inverse = hn::Set(F32(), 1 / format.scale);
  const VF32 most = hn::Set(F32(), static_cast<float>(format.levels()));
  Input<float, kTile> tiles(values, count);
  Output<Accumulator, kTile> codes(accumulators, Store::kCached);
  WideNoise random(noise);
  EncodingCounts found;
  for (std::size_t first = 0; first < count; first += kTile) {
    const std::size_t valid = std::min(kTile, count - first);
    const float* tile = tiles.tile(first);
    Accumulator* target = codes.tile(valid);
    random.prepare(first, kTile);
    for (std::size_t i = 0; i < kTile; i += kLanes) {
      const VF32 value = load_values(tile + i);
      const VF32 wanted = hn::Mul(value, inverse);
      found.not_finite += kLanes - hn::CountTrue(F32(), hn::IsFinite(value));
      found.clamped += hn::CountTrue(F32(), hn::Gt(hn::Abs(wanted), most));
      const VF32 clamped = hn::Max(hn::Min(wanted, most), hn::Neg(most));
      store_accumulators(rounded(clamped, random.at(i)), target + i);
    }
    codes.commit(valid);
  }
  return found;
}

template <typename Accumulator>
void decode_as(const std::byte* accumulators, std::size_t count, const AccumulatorFormat& format,
               float* values) {
  const VF32 scale = hn::Set(F32(), format.scale);
  Input<Accumulator, kTile> tiles(accumulators, count);
  Output<float, kTile> results(values, Store::kCached);
  for (std::size_t first = 0; first < count; first += kTile) {
    const std::size_t valid = std::min(kTile, count - first);
    const Accumulator* tile = tiles.tile(first);
    float* target = results.tile(valid);
    for (std::size_t i = 0; i < kTile; i += kLanes)
      store_values(hn::Mul(hn::ConvertTo(F32(), load_accumulators(tile + i)), scale), target + i);
    results.commit(valid);
  }
}

/// Combines accumulators. Compilers vectorise this loop.
template <typename Accumulator, class Operation>
HWY_INLINE void combine(std::byte* sums, const std::byte* others, std::size_t count,
                        Operation operation) {
  for (std::size_t i = 0; i < count; ++i) {
    Accumulator left, right;
    std::memcpy(&left, sums + i * sizeof left, sizeof left);
    std::memcpy(&right, others + i * sizeof right, sizeof right);
    left = operation(left, right);
    std::memcpy(sums + i * sizeof left, &left, sizeof left);
  }
}

/// Calls `visitor(Accumulator{})` with a signed integer of `accumulator_bits` bits.
template <typename Visitor>
auto visit_width(unsigned accumulator_bits, Visitor&& visitor) {
  if (accumulator_bits == 8) return visitor(std::int8_t{});
  if (accumulator_bits == 16) return visitor(std::int16_t{});
  return visitor(std::int32_t{});
}

EncodingCounts accumulators_encode_on(const float* values, std::size_t count,
                                      const AccumulatorFormat& format, const Noise& noise,
                                      std::byte* accumulators) {
  const DefaultFloatMode mode;
  return visit_width(format.accumulator_bits, [&](auto accumulator) {
    return encode_as<decltype(accumulator)>(values, count, format, noise, accumulators);
  });
}

void accumulators_decode_on(const std::byte* accumulators, std::size_t count,
                            const AccumulatorFormat& format, float* values) {
  const DefaultFloatMode mode;
  visit_width(format.accumulator_bits, [&](auto accumulator) {
    decode_as<decltype(accumulator)>(accumulators, count, format, values);
  });
}

void accumulators_combine_on(std::byte* sums, const std::byte* others, std::size_t count,
                             unsigned accumulator_bits, AccumulatorOperation operation) {
  visit_width(accumulator_bits, [&](auto accumulator) {
    using Bits = std::make_unsigned_t<decltype(accumulator)>;
    if (operation == AccumulatorOperation::kAdd)
      combine<Bits>(sums, others, count,
                    [](Bits a, Bits b) HWY_ATTR { return static_cast<Bits>(a + b); });
    else
      combine<Bits>(sums, others, count,
                    [](Bits a, Bits b) HWY_ATTR { return static_cast<Bits>(a - b); });
  });
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

TERSOR_DISPATCHED(EncodingCounts, accumulators_encode,
                  (const float* values, std::size_t count, const AccumulatorFormat& format,
                   const Noise& noise, std::byte* accumulators),
                  (values, count, format, noise, accumulators))
TERSOR_DISPATCHED(void, accumulators_decode,
                  (const std::byte* accumulators, std::size_t count,
                   const AccumulatorFormat& format, float* values),
                  (accumulators, count, format, values))
TERSOR_DISPATCHED(void, accumulators_combine,
                  (std::byte * sums, const std::byte* others, std::size_t count,
                   unsigned accumulator_bits, AccumulatorOperation operation),
                  (sums, others, count, accumulator_bits, operation))

}  // namespace tersor::kernels
#endif
