// Implements kernels/intsum/lanes.h, once per instruction set.

#include "kernels/intsum/lanes.h"

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/intsum/lanes.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/host/noise-inl.h"
#include "kernels/host/tiles-inl.h"
#include "kernels/scalar/float_mode.h"

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

constexpr std::size_t kLaneTile = 256;  // values

template <typename Lane>
HWY_INLINE void store_lanes(VI32 codes, Lane* lanes) {
  const hn::Rebind<Lane, I32> tag;
  if constexpr (sizeof(Lane) == 4)
    hn::StoreU(codes, tag, lanes);
  else
    hn::StoreU(hn::DemoteTo(tag, codes), tag, lanes);
}

template <typename Lane>
HWY_INLINE VI32 load_lanes(const Lane* lanes) {
  const hn::Rebind<Lane, I32> tag;
  if constexpr (sizeof(Lane) == 4)
    return hn::LoadU(tag, lanes);
  else
    return hn::PromoteTo(I32(), hn::LoadU(tag, lanes));
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

template <typename Lane>
LanesFound encode_as(const float* values, std::size_t count, const LaneFormat& format,
                     const Noise& noise, std::byte* lanes) {
  const VF32 inverse = hn::Set(F32(), 1 / format.scale);
  const VF32 most = hn::Set(F32(), static_cast<float>(format.levels()));
  Input<float, kLaneTile> tiles(values, count);
  Output<Lane, kLaneTile> codes(lanes, Store::kCached);
  WideNoise random(noise);
  LanesFound found;
  for (std::size_t first = 0; first < count; first += kLaneTile) {
    const std::size_t valid = std::min(kLaneTile, count - first);
    const float* tile = tiles.tile(first);
    Lane* target = codes.tile(valid);
    random.provide(first, kLaneTile);
    for (std::size_t i = 0; i < kLaneTile; i += kLanes) {
      const VF32 value = load_values(tile + i);
      const VF32 wanted = hn::Mul(value, inverse);
      found.not_finite += kLanes - hn::CountTrue(F32(), hn::IsFinite(value));
      found.cut += hn::CountTrue(F32(), hn::Gt(hn::Abs(wanted), most));
      const VF32 cut = hn::Max(hn::Min(wanted, most), hn::Neg(most));
      store_lanes(rounded(cut, random.at(i)), target + i);
    }
    codes.take(valid);
  }
  return found;
}

template <typename Lane>
void decode_as(const std::byte* lanes, std::size_t count, const LaneFormat& format, float* values) {
  const VF32 scale = hn::Set(F32(), format.scale);
  Input<Lane, kLaneTile> tiles(lanes, count);
  Output<float, kLaneTile> results(values, Store::kCached);
  for (std::size_t first = 0; first < count; first += kLaneTile) {
    const std::size_t valid = std::min(kLaneTile, count - first);
    const Lane* tile = tiles.tile(first);
    float* target = results.tile(valid);
    for (std::size_t i = 0; i < kLaneTile; i += kLanes)
      store_values(hn::Mul(hn::ConvertTo(F32(), load_lanes(tile + i)), scale), target + i);
    results.take(valid);
  }
}

/// Combines accumulators. Compilers vectorise this loop.
template <typename Lane, class Operation>
HWY_INLINE void combine(std::byte* sums, const std::byte* others, std::size_t count,
                        Operation operation) {
  for (std::size_t i = 0; i < count; ++i) {
    Lane left, right;
    std::memcpy(&left, sums + i * sizeof left, sizeof left);
    std::memcpy(&right, others + i * sizeof right, sizeof right);
    left = operation(left, right);
    std::memcpy(sums + i * sizeof left, &left, sizeof left);
  }
}

/// Calls `visitor(Lane{})` with a signed integer of `lanes` bits.
template <typename Visitor>
auto visit_lane(unsigned lanes, Visitor&& visitor) {
  if (lanes == 8) return visitor(std::int8_t{});
  if (lanes == 16) return visitor(std::int16_t{});
  return visitor(std::int32_t{});
}

LanesFound lanes_encode_on(const float* values, std::size_t count, const LaneFormat& format,
                           const Noise& noise, std::byte* lanes) {
  const DefaultFloatMode mode;
  return visit_lane(format.lanes, [&](auto lane) {
    return encode_as<decltype(lane)>(values, count, format, noise, lanes);
  });
}

void lanes_decode_on(const std::byte* lanes, std::size_t count, const LaneFormat& format,
                     float* values) {
  const DefaultFloatMode mode;
  visit_lane(format.lanes,
             [&](auto lane) { decode_as<decltype(lane)>(lanes, count, format, values); });
}

void lanes_combine_on(std::byte* sums, const std::byte* others, std::size_t count, unsigned lanes,
                      LaneOperation operation) {
  visit_lane(lanes, [&](auto lane) {
    using Bits = std::make_unsigned_t<decltype(lane)>;
    if (operation == LaneOperation::kAdd)
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

TERSOR_DISPATCHED(LanesFound, lanes_encode,
                  (const float* values, std::size_t count, const LaneFormat& format,
                   const Noise& noise, std::byte* lanes),
                  (values, count, format, noise, lanes))
TERSOR_DISPATCHED(void, lanes_decode,
                  (const std::byte* lanes, std::size_t count, const LaneFormat& format,
                   float* values),
                  (lanes, count, format, values))
TERSOR_DISPATCHED(void, lanes_combine,
                  (std::byte * sums, const std::byte* others, std::size_t count, unsigned lanes,
                   LaneOperation operation),
                  (sums, others, count, lanes, operation))

}  // namespace tersor::kernels
#endif
