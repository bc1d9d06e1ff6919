// The top-k loops over values, one source for all instruction sets. A scan reads gradient and
// residual once and writes the residual once, strip by strip. The loop over values contains no
// unpredictable branch: the loop writes p everywhere and records candidate indices as bits. A
// second loop then examines each candidate. Long because one source holds the loops of all
// instruction sets and dtypes.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/topk/cpu_scan.cc"

#include "kernels/topk/cpu_scan.h"

#include "kernels/host/targets.h"

#include <hwy/foreach_target.h>

#include "kernels/host/dispatch.h"
#include "kernels/host/feedback-inl.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace {

/// Pointers to the values of one strip. `E` is the residual type or NoValues.
template <typename G, typename E>
struct Strip {
  static constexpr bool kHasResidual = !std::is_same_v<E, NoValues>;

  Strip(const TopkScan& scan_, TopkStrip strip)
      : scan(scan_),
        gradient(static_cast<const G*>(scan.gradient) + strip.begin),
        residual(offset(static_cast<const E*>(scan.feedback.residual_in), strip.begin)),
        output(offset(static_cast<E*>(scan.feedback.residual_out), strip.begin)),
        count(strip.count),
        first_index(strip.begin % kTopkTile) {}

  template <typename T>
  static T* offset(T* pointer, std::size_t begin) {
    return pointer == nullptr ? nullptr : pointer + begin;
  }

  const TopkScan& scan;
  const G* gradient;
  const E* residual;
  E* output;
  std::size_t count;
  std::size_t first_index;
};

// Scalar code: the portable target, and the tail of a strip on all other targets.

template <typename G, typename E>
HWY_INLINE float value_at(const Strip<G, E>& strip, std::size_t i) {
  const float g = to_f32(strip.gradient[i]);
  if constexpr (!Strip<G, E>::kHasResidual)
    return g;
  else {
    const float gradient_term = strip.scan.feedback.gradient_factor * g;
    const float residual_term = strip.scan.feedback.residual_factor * to_f32(strip.residual[i]);
    return gradient_term + residual_term;
  }
}

/// Sets the residual of a candidate, whose old residual is `old`, to the remainder after sending.
template <typename G, typename E>
HWY_INLINE void store_remainder(const Strip<G, E>& strip, std::size_t i, float p, E old) {
  const TopkScan& scan = strip.scan;
  const std::uint32_t key = topk_key(p);
  if (key >= scan.limit)
    strip.output[i] = old;
  else if (scan.clear != TopkClear::kNothing && key >= scan.thresholds.guess)
    strip.output[i] = from_f32<E>(topk_remainder(scan.clear, p));
}

HWY_INLINE void count_candidate(const TopkScan& scan, float p, TopkKeyCounts& key_counts) {
  const std::uint32_t key = topk_key(p);
  key_counts.guess += key >= scan.thresholds.guess;
  key_counts.above += key >= scan.thresholds.above;
  key_counts.non_finite += key >= scan.limit;
}

/// Scans the values [begin, strip.count). The first `found` candidates are already stored.
template <typename G, typename E>
std::size_t scan_values(const Strip<G, E>& strip, std::size_t begin, std::size_t found,
                        TopkCandidates out, TopkKeyCounts& key_counts) {
  for (std::size_t i = begin; i < strip.count; ++i) {
    const float p = value_at(strip, i);
    const bool candidate = topk_key(p) >= strip.scan.thresholds.threshold;
    if constexpr (Strip<G, E>::kHasResidual)
      if (strip.output != nullptr) {
        const E old = strip.residual[i];
        strip.output[i] = from_f32<E>(p);
        if (candidate) store_remainder(strip, i, p, old);
      }
    if (!candidate) continue;
    out.value[found] = p;
    out.index[found++] = static_cast<std::uint16_t>(strip.first_index + i);
    count_candidate(strip.scan, p, key_counts);
  }
  return found;
}

HWY_INLINE bool in_range(float value, TopkKeys keys) {
  return topk_key(value) >= keys.low && topk_key(value) < keys.high;
}

#if !TERSOR_PORTABLE

constexpr std::size_t kPrefetchDistance = 1024;  // prefetch distance in values
constexpr std::size_t kBlock = 512;  // candidates are examined after each block of this many values
constexpr std::size_t kWord = 64;
constexpr std::uint64_t kLastBit = std::uint64_t{1} << 63;

struct TopkRunRange {
  std::size_t begin;
  std::size_t end;
};

/// Records candidate indices, in order. A 64-bit word usually has few bits set, so `add` always
/// extracts four bits, and only further bits cost a branch. Up to kTopkSlack entries after the last
/// index are overwritten.
class Indices {
 public:
  Indices(std::uint16_t* indices, std::size_t first_index)
      : indices_(indices), base_(first_index) {}

  HWY_INLINE void add(std::uint64_t word) {
    const auto many = static_cast<std::size_t>(std::popcount(word));
    std::uint16_t* indices = indices_ + count_;
    for (std::size_t j = 0; j < 4; ++j) indices[j] = next(word);
    for (std::size_t j = 4; j < many; ++j) indices[j] = next(word);
    count_ += many;
    base_ += kWord;
  }

  std::size_t count() const { return count_; }

 private:
  HWY_INLINE std::uint16_t next(std::uint64_t& word) const {
    // The last bit stands for "none", because std::countr_zero needs a branch to handle zero.
    const auto bit = static_cast<std::size_t>(std::countr_zero(word | kLastBit));
    word &= word - 1;
    return static_cast<std::uint16_t>(base_ + bit);
  }

  std::uint16_t* indices_;
  std::size_t base_;
  std::size_t count_ = 0;
};

template <typename Mask>
HWY_INLINE std::uint64_t bits_of_mask(Mask mask) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(I32(), mask, bytes);
  std::uint64_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

/// The loop over the values of one strip. If the residual is f32, the loop may overwrite the
/// residual in place: the old values are saved in `old_residual`, and p is read back. Otherwise p
/// can be computed again.
template <typename G, typename E>
class VectorScan {
 public:
  explicit VectorScan(const Strip<G, E>& strip)
      : strip_(strip),
        a_(hn::Set(F32(), strip.scan.feedback.gradient_factor)),
        b_(hn::Set(F32(), strip.scan.feedback.residual_factor)),
        threshold_(gt_bound(strip.scan.thresholds.threshold)) {}

  /// Returns p at index `i` and sets `old` to the old residual.
  HWY_INLINE VF32 values_at(std::size_t i, VF32& old) const {
    const VF32 g = load_values(strip_.gradient + i);
    if constexpr (!Strip<G, E>::kHasResidual)
      return g;
    else {
      old = load_values(strip_.residual + i);
      return hn::Add(hn::Mul(a_, g), hn::Mul(b_, old));
    }
  }

  /// Scans the values [begin, end), a whole number of vectors. Writes p to the residual and records
  /// candidate indices.
  template <bool kWrites>
  HWY_INLINE void run(std::size_t begin, std::size_t end, Indices& found,
                      float* old_residual) const {
    for (; begin + kWord <= end; begin += kWord)
      found.add(word<kWrites>(begin, kWord, old_residual));
    if (begin < end) found.add(word<kWrites>(begin, end - begin, old_residual));
  }

 private:
  /// Returns a bit mask of the candidates.
  template <bool kWrites>
  HWY_INLINE std::uint64_t word(std::size_t begin, std::size_t count, float* old_residual) const {
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < count; i += kLanes) {
      prefetch(begin + i + kPrefetchDistance);
      VF32 old = hn::Zero(F32());
      const VF32 p = values_at(begin + i, old);
      bits |= bits_of_mask(hn::Gt(keys_of(p), threshold_)) << i;
      if constexpr (kWrites) {
        if constexpr (std::is_same_v<E, float>) hn::Store(old, F32(), old_residual + begin + i);
        store_values(p, strip_.output + begin + i);
      }
    }
    return bits;
  }

  HWY_INLINE void prefetch(std::size_t i) const {
    __builtin_prefetch(strip_.gradient + i);
    if constexpr (Strip<G, E>::kHasResidual) __builtin_prefetch(strip_.residual + i, 1);
  }

  const Strip<G, E>& strip_;
  VF32 a_, b_;
  VI32 threshold_;
};

/// Examines the candidates [begin, end) of a strip, whose indices are already recorded.
template <bool kWrites, typename G, typename E>
HWY_INLINE void finish_candidates(const Strip<G, E>& strip, TopkRunRange range,
                                  const float* old_residual, TopkCandidates out,
                                  TopkKeyCounts& key_counts) {
  for (std::size_t j = range.begin; j < range.end; ++j) {
    const std::size_t i = out.index[j] - strip.first_index;
    float p;
    if constexpr (kWrites && std::is_same_v<E, float>) {
      p = strip.output[i];
      store_remainder(strip, i, p, old_residual[i]);
    } else {
      p = value_at(strip, i);
      if constexpr (kWrites) store_remainder(strip, i, p, strip.residual[i]);
    }
    out.value[j] = p;
    count_candidate(strip.scan, p, key_counts);
  }
}

/// Scans as many values as fill whole vectors. The candidates of one block are examined while the
/// values of the next block are being loaded.
template <bool kWrites, typename G, typename E>
std::size_t scan_vectors(const Strip<G, E>& strip, std::size_t count, TopkCandidates out,
                         TopkKeyCounts& key_counts) {
  alignas(64) float old_residual[kWrites && std::is_same_v<E, float> ? kTopkStrip : 1];
  const VectorScan<G, E> vectors(strip);
  Indices indices(out.index, strip.first_index);
  std::size_t finished = 0;
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t ready = indices.count();
    vectors.template run<kWrites>(begin, std::min(begin + kBlock, count), indices, old_residual);
    finish_candidates<kWrites>(strip, {finished, ready}, old_residual, out, key_counts);
    finished = ready;
  }
  finish_candidates<kWrites>(strip, {finished, indices.count()}, old_residual, out, key_counts);
  return indices.count();
}

/// Stores the masked lanes contiguously. Entries after the stored lanes are overwritten.
template <typename Mask>
HWY_INLINE void store_lanes(VF32 p, VI32 index, Mask mask, TopkCandidates out) {
  const hn::Rebind<std::uint16_t, F32> narrow;
  hn::StoreU(hn::Compress(p, mask), F32(), out.value);
  if (out.index == nullptr) return;
  hn::StoreU(hn::DemoteTo(narrow, hn::Compress(index, hn::RebindMask(I32(), mask))), narrow,
             out.index);
}

/// Like store_lanes, but without overwriting later entries.
template <typename Mask>
void store_lanes_only(VF32 p, VI32 index, Mask mask, TopkCandidates out) {
  float value[kTopkSlack];
  std::uint16_t position[kTopkSlack];
  store_lanes(p, index, mask, {value, position});
  const std::size_t count = hn::CountTrue(F32(), mask);
  std::memcpy(out.value, value, count * sizeof(float));
  if (out.index != nullptr) std::memcpy(out.index, position, count * sizeof(std::uint16_t));
}

/// Selects from as many values as fill whole vectors.
std::size_t select_vectors(const TopkRunView& run, TopkKeys keys, TopkCandidates out,
                           std::size_t space) {
  const hn::Rebind<std::uint16_t, F32> narrow;
  const VI32 low = gt_bound(keys.low), high = gt_bound(keys.high);
  std::size_t found = 0;
  for (std::size_t i = 0; i + kLanes <= run.count; i += kLanes) {
    const VF32 p = load_values(run.value + i);
    const auto chosen = hn::AndNot(hn::Gt(keys_of(p), high), hn::Gt(keys_of(p), low));
    if (hn::AllFalse(I32(), chosen)) continue;
    VI32 index = hn::Zero(I32());
    if (run.index != nullptr) index = hn::PromoteTo(I32(), hn::LoadU(narrow, run.index + i));
    const auto mask = hn::RebindMask(F32(), chosen);
    const TopkCandidates target{out.value + found,
                                run.index == nullptr ? nullptr : out.index + found};
    if (HWY_LIKELY(found + kLanes <= space))
      store_lanes(p, index, mask, target);
    else
      store_lanes_only(p, index, mask, target);
    found += hn::CountTrue(I32(), chosen);
  }
  return found;
}

HWY_INLINE VI32 counted(VI32 sum, VI32 keys, VI32 bound) {
  return hn::Sub(sum, hn::VecFromMask(I32(), hn::Gt(keys, bound)));
}

HWY_INLINE std::size_t total(VI32 sum) {
  return static_cast<std::size_t>(hn::GetLane(hn::SumOfLanes(I32(), sum)));
}

#endif  // !TERSOR_PORTABLE

template <typename G, typename E>
void compute(const Strip<G, E>& strip, float* out) {
  std::size_t i = 0;
#if !TERSOR_PORTABLE
  const VectorScan<G, E> vectors(strip);
  VF32 old = hn::Zero(F32());
  for (; i + kLanes <= strip.count; i += kLanes) store_values(vectors.values_at(i, old), out + i);
#endif
  for (; i < strip.count; ++i) out[i] = value_at(strip, i);
}

template <typename G, typename E>
std::size_t scan_strip(const Strip<G, E>& strip, TopkCandidates out, TopkKeyCounts& key_counts) {
  std::size_t done = 0, found = 0;
#if !TERSOR_PORTABLE
  done = strip.count / kLanes * kLanes;
  constexpr bool kCanWrite = Strip<G, E>::kHasResidual;
  found = kCanWrite && strip.output != nullptr
              ? scan_vectors<kCanWrite>(strip, done, out, key_counts)
              : scan_vectors<false>(strip, done, out, key_counts);
#endif
  found = scan_values(strip, done, found, out, key_counts);
  key_counts.threshold += found;
  return found;
}

}  // namespace

void topk_compute_on(const TopkScan& scan, TopkStrip strip, float* out) {
  visit_sent(scan, [&]<typename G, typename E>(G, E) { compute(Strip<G, E>(scan, strip), out); });
}

std::size_t topk_scan_strip_on(const TopkScan& scan, TopkStrip strip, TopkCandidates out,
                               TopkKeyCounts& key_counts) {
  return visit_sent(scan, [&]<typename G, typename E>(G, E) {
    return scan_strip(Strip<G, E>(scan, strip), out, key_counts);
  });
}

std::size_t topk_select_on(const TopkRunView& run, TopkKeys keys, TopkCandidates out,
                           [[maybe_unused]] std::size_t space) {
  std::size_t i = 0, found = 0;
#if !TERSOR_PORTABLE
  i = run.count / kLanes * kLanes;
  found = select_vectors(run, keys, out, space);
#endif
  for (; i < run.count; ++i) {
    if (!in_range(run.value[i], keys)) continue;
    out.value[found] = run.value[i];
    if (run.index != nullptr) out.index[found] = run.index[i];
    ++found;
  }
  return found;
}

TopkTileCount topk_count_on(const TopkRunView& run, std::uint32_t key) {
  std::size_t i = 0, larger = 0, equal = 0;
#if !TERSOR_PORTABLE
  const VI32 bound = gt_bound(key), bound_above = gt_bound(key + 1);
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

TERSOR_DISPATCHED(void, topk_compute, (const TopkScan& scan, TopkStrip strip, float* out),
                  (scan, strip, out))

TERSOR_DISPATCHED(std::size_t, topk_scan_strip,
                  (const TopkScan& scan, TopkStrip strip, TopkCandidates out,
                   TopkKeyCounts& key_counts),
                  (scan, strip, out, key_counts))

TERSOR_DISPATCHED(std::size_t, topk_select,
                  (const TopkRunView& run, TopkKeys keys, TopkCandidates out, std::size_t space),
                  (run, keys, out, space))

TERSOR_DISPATCHED(TopkTileCount, topk_count, (const TopkRunView& run, std::uint32_t key),
                  (run, key))

}  // namespace tersor::kernels
#endif  // HWY_ONCE
