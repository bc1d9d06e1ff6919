// The loops of top-k over values, one source for all instruction sets. A scan reads the gradient and
// the residual once and writes the residual once; candidates are rare, so vectors without one leave
// early, and all that only candidates need is done behind that branch.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/topk/cpu_scan.cc"

#include "kernels/topk/cpu_scan.h"

#include "kernels/common/targets.h"

#include <hwy/foreach_target.h>

#include "kernels/common/dispatch.h"
#include "kernels/common/simd-inl.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

struct NoResidual {};

/// Calls `visitor(E{})` with the residual's type: float, Bf16 or NoResidual.
template <typename Visitor>
std::size_t visit_residual_type(const Feedback& feedback, Visitor&& visitor) {
  if (feedback.residual_in == nullptr) return visitor(NoResidual{});
  return feedback.dtype == Dtype::kBf16 ? visitor(Bf16{}) : visitor(float{});
}

/// Where the values of one strip lie. `E` is the residual's type, or NoResidual.
template <typename G, typename E>
struct Strip {
  Strip(const TopkScan& scan_, TopkStrip strip)
      : scan(scan_),
        gradient(static_cast<const G*>(scan.gradient) + strip.begin),
        residual(offset(static_cast<const E*>(scan.feedback.residual_in), strip.begin)),
        output(offset(static_cast<E*>(scan.feedback.residual_out), strip.begin)),
        first_index(strip.begin % kTopkTile) {}

  template <typename T>
  static T* offset(T* pointer, std::size_t begin) {
    return pointer == nullptr ? nullptr : pointer + begin;
  }

  const TopkScan& scan;
  const G* gradient;
  const E* residual;
  E* output;
  std::size_t first_index;
};

// One value at a time: the portable code, and the tail of a strip for all others.

/// What the residual becomes at a candidate.
HWY_INLINE float cleared(const TopkScan& scan, float p, float old) {
  if (topk_key(p) >= scan.limit) return old;
  if (scan.clear == TopkClear::kWhole) return 0.0f;
  if (scan.clear == TopkClear::kBf16) return p - to_f32(from_f32<Bf16>(p));
  return p;
}

template <typename G, typename E>
HWY_INLINE float value_at(const Strip<G, E>& strip, std::size_t i, float& old) {
  const float g = to_f32(strip.gradient[i]);
  if constexpr (std::is_same_v<E, NoResidual>) {
    return g;
  } else {
    old = to_f32(strip.residual[i]);
    const float sent = strip.scan.feedback.gradient_factor * g;
    const float kept = strip.scan.feedback.residual_factor * old;
    return sent + kept;
  }
}

/// Scans values [begin, end) of the strip; `found` candidates are there already.
template <typename G, typename E>
std::size_t scan_values(const Strip<G, E>& strip, TopkStrip range, TopkCandidates out,
                        TopkTally& tally, std::size_t found) {
  const TopkLadder& ladder = strip.scan.ladder;
  for (std::size_t i = range.begin; i < range.begin + range.count; ++i) {
    float old = 0;
    const float p = value_at(strip, i, old);
    const std::uint32_t key = topk_key(p);
    for (std::size_t rung = 0; rung < kTopkRungs; ++rung)
      tally.reached[rung] += key >= ladder[rung];
    tally.non_finite += key >= strip.scan.limit;
    const bool candidate = key >= ladder[kTopkThreshold];
    if constexpr (!std::is_same_v<E, NoResidual>)
      if (strip.output != nullptr)
        strip.output[i] = from_f32<E>(candidate ? cleared(strip.scan, p, old) : p);
    if (!candidate) continue;
    out.value[found] = p;
    out.index[found++] = static_cast<std::uint16_t>(strip.first_index + i);
  }
  return found;
}

HWY_INLINE bool in_range(float value, TopkKeys keys) {
  return topk_key(value) >= keys.low && topk_key(value) < keys.high;
}

#if !TERSOR_PORTABLE

HWY_INLINE VI32 keys_of(VF32 p) {
  return hn::BitCast(I32(), hn::And(hn::BitCast(U32(), p), hn::Set(U32(), 0x7fffffffu)));
}

/// A bound for hn::Gt; keys and bounds fit into 31 bits.
HWY_INLINE VI32 before(std::uint32_t key) {
  return hn::Set(I32(), static_cast<std::int32_t>(key - 1));
}

HWY_INLINE VI32 counted(VI32 sum, VI32 keys, VI32 bound) {
  return hn::Sub(sum, hn::VecFromMask(I32(), hn::Gt(keys, bound)));
}

HWY_INLINE std::size_t total(VI32 sum) {
  return static_cast<std::size_t>(hn::GetLane(hn::SumOfLanes(I32(), sum)));
}

HWY_INLINE std::size_t count_from(VI32 keys, std::uint32_t key) {
  return hn::CountTrue(I32(), hn::Gt(keys, before(key)));
}

/// Stores the lanes of a mask side by side; the places behind them are overwritten.
template <typename Mask>
HWY_INLINE void store_lanes(VF32 p, VI32 index, Mask mask, TopkCandidates out) {
  const hn::Rebind<std::uint16_t, F32> narrow;
  hn::StoreU(hn::Compress(p, mask), F32(), out.value);
  hn::StoreU(hn::DemoteTo(narrow, hn::Compress(index, hn::RebindMask(I32(), mask))), narrow,
             out.index);
}

HWY_INLINE VF32 rounding_loss(VF32 p) {
  const VU32 bits = hn::BitCast(U32(), p);
  const VU32 even = hn::And(hn::ShiftRight<16>(bits), hn::Set(U32(), 1));
  const VU32 rounded = hn::And(hn::Add(bits, hn::Add(even, hn::Set(U32(), 0x7fff))),
                               hn::Set(U32(), 0xffff0000u));
  return hn::Sub(p, hn::BitCast(F32(), rounded));
}

/// The residual of a vector that holds candidates.
template <typename Mask>
HWY_INLINE VF32 cleared(const TopkScan& scan, VF32 p, VF32 old, Mask candidates) {
  const auto bad = hn::RebindMask(F32(), hn::Gt(keys_of(p), before(scan.limit)));
  VF32 next = p;
  if (scan.clear == TopkClear::kWhole) next = hn::IfThenZeroElse(candidates, p);
  if (scan.clear == TopkClear::kBf16) next = hn::IfThenElse(candidates, rounding_loss(p), p);
  return hn::IfThenElse(bad, old, next);
}

template <typename G, typename E>
HWY_INLINE VF32 values_at(const Strip<G, E>& strip, std::size_t i, VF32 a, VF32 b, VF32& old) {
  const VF32 g = load_values(strip.gradient + i);
  if constexpr (std::is_same_v<E, NoResidual>) {
    return g;
  } else {
    old = load_values(strip.residual + i);
    return hn::Add(hn::Mul(a, g), hn::Mul(b, old));
  }
}

template <typename G, typename E, bool kWrites>
std::size_t scan_vectors(const Strip<G, E>& strip, std::size_t count, TopkCandidates out,
                         TopkTally& tally) {
  const TopkScan& scan = strip.scan;
  const VF32 a = hn::Set(F32(), scan.feedback.gradient_factor);
  const VF32 b = hn::Set(F32(), scan.feedback.residual_factor);
  const VI32 bound = before(scan.ladder[kTopkThreshold]);
  const VI32 bound0 = before(scan.ladder[0]), bound1 = before(scan.ladder[1]);
  const VI32 bound2 = before(scan.ladder[2]), bound3 = before(scan.ladder[3]);
  VI32 sum0 = hn::Zero(I32()), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  std::size_t found = 0;
  for (std::size_t i = 0; i < count; i += kLanes) {
    VF32 old = hn::Zero(F32());
    const VF32 p = values_at(strip, i, a, b, old);
    const VI32 keys = keys_of(p);
    sum0 = counted(sum0, keys, bound0);
    sum1 = counted(sum1, keys, bound1);
    sum2 = counted(sum2, keys, bound2);
    sum3 = counted(sum3, keys, bound3);
    if constexpr (kWrites) store_values(p, strip.output + i);
    const auto candidates = hn::Gt(keys, bound);
    if (HWY_LIKELY(hn::AllFalse(I32(), candidates))) continue;
    const auto mask = hn::RebindMask(F32(), candidates);
    if constexpr (kWrites) store_values(cleared(scan, p, old, mask), strip.output + i);
    const auto index = hn::Iota(I32(), static_cast<std::int32_t>(strip.first_index + i));
    store_lanes(p, index, mask, {out.value + found, out.index + found});
    found += hn::CountTrue(I32(), candidates);
    for (std::size_t rung = kTopkThreshold + 1; rung < kTopkRungs; ++rung)
      tally.reached[rung] += count_from(keys, scan.ladder[rung]);
    tally.non_finite += count_from(keys, scan.limit);
  }
  tally.reached[0] += total(sum0);
  tally.reached[1] += total(sum1);
  tally.reached[2] += total(sum2);
  tally.reached[3] += total(sum3);
  tally.reached[kTopkThreshold] += found;
  return found;
}

#endif  // !TERSOR_PORTABLE

template <typename G, typename E>
std::size_t scan_typed(const TopkScan& scan, TopkStrip strip, TopkCandidates out,
                       TopkTally& tally) {
  const Strip<G, E> pointers(scan, strip);
  std::size_t done = 0, found = 0;
#if !TERSOR_PORTABLE
  done = strip.count / kLanes * kLanes;
  constexpr bool kCanWrite = !std::is_same_v<E, NoResidual>;
  found = kCanWrite && scan.feedback.residual_out != nullptr
              ? scan_vectors<G, E, kCanWrite>(pointers, done, out, tally)
              : scan_vectors<G, E, false>(pointers, done, out, tally);
#endif
  return scan_values(pointers, {done, strip.count - done}, out, tally, found);
}

std::size_t scan_strip(const TopkScan& scan, TopkStrip strip, TopkCandidates out,
                       TopkTally& tally) {
  return visit_gradient_dtype(scan.dtype, [&](auto g) {
    return visit_residual_type(scan.feedback, [&](auto e) {
      return scan_typed<decltype(g), decltype(e)>(scan, strip, out, tally);
    });
  });
}

#if !TERSOR_PORTABLE
template <typename Mask>
HWY_INLINE Mask lanes_in_range(VI32 key, TopkKeys keys) {
  return hn::AndNot(hn::Gt(key, before(keys.high)), hn::Gt(key, before(keys.low)));
}

/// The same without touching what lies behind the lanes.
template <typename Mask>
void store_lanes_only(VF32 p, VI32 index, Mask mask, TopkCandidates out) {
  float value[kTopkSlack];
  std::uint16_t position[kTopkSlack];
  store_lanes(p, index, mask, {value, position});
  const std::size_t count = hn::CountTrue(F32(), mask);
  std::memcpy(out.value, value, count * sizeof(float));
  std::memcpy(out.index, position, count * sizeof(std::uint16_t));
}
#endif

std::size_t select(const TopkRunView& run, TopkKeys keys, TopkCandidates out, std::size_t room) {
  std::size_t i = 0, found = 0;
#if !TERSOR_PORTABLE
  const hn::Rebind<std::uint16_t, F32> narrow;
  for (; i + kLanes <= run.count; i += kLanes) {
    const VF32 p = load_values(run.value + i);
    const auto chosen = lanes_in_range<hn::Mask<I32>>(keys_of(p), keys);
    if (hn::AllFalse(I32(), chosen)) continue;
    const VI32 index = hn::PromoteTo(I32(), hn::LoadU(narrow, run.index + i));
    const auto mask = hn::RebindMask(F32(), chosen);
    const TopkCandidates place{out.value + found, out.index + found};
    if (HWY_LIKELY(found + kLanes <= room))
      store_lanes(p, index, mask, place);
    else
      store_lanes_only(p, index, mask, place);
    found += hn::CountTrue(I32(), chosen);
  }
#endif
  for (; i < run.count; ++i) {
    if (!in_range(run.value[i], keys) || found >= room) continue;
    out.value[found] = run.value[i];
    out.index[found++] = run.index[i];
  }
  return found;
}

TopkTileCount count(const TopkRunView& run, std::uint32_t key) {
  std::size_t i = 0, larger = 0, equal = 0;
#if !TERSOR_PORTABLE
  const VI32 bound = before(key), bound_above = before(key + 1);
  VI32 from = hn::Zero(I32()), above = from;
  for (; i + kLanes <= run.count; i += kLanes) {
    const VI32 keys = keys_of(load_values(run.value + i));
    from = counted(from, keys, bound);
    above = counted(above, keys, bound_above);
  }
  larger = total(above);
  equal = total(from) - larger;
#endif
  for (; i < run.count; ++i) {
    larger += topk_key(run.value[i]) > key;
    equal += topk_key(run.value[i]) == key;
  }
  return {static_cast<std::uint32_t>(larger), static_cast<std::uint32_t>(equal)};
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::kernels {

HWY_EXPORT(scan_strip);
HWY_EXPORT(select);
HWY_EXPORT(count);

std::size_t topk_scan_strip(const TopkScan& scan, TopkStrip strip, TopkCandidates out,
                            TopkTally& tally) {
  return TERSOR_DISPATCH(scan_strip)(scan, strip, out, tally);
}

std::size_t topk_select(const TopkRunView& run, TopkKeys keys, TopkCandidates out,
                        std::size_t room) {
  return TERSOR_DISPATCH(select)(run, keys, out, room);
}

TopkTileCount topk_count(const TopkRunView& run, std::uint32_t key) {
  return TERSOR_DISPATCH(count)(run, key);
}

}  // namespace tersor::kernels
#endif  // HWY_ONCE
