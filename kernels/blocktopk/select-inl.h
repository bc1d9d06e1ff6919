// Selects the k largest of a block of 4,096 values in the first-level cache, for one instruction
// set. Bisection finds a threshold reached by a few more than k keys, starting at the previous
// block's threshold. A second bisection over the candidates finds the exact k-th key.
#if defined(TERSOR_KERNELS_BLOCKTOPK_SELECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_BLOCKTOPK_SELECT_INL_H_
#undef TERSOR_KERNELS_BLOCKTOPK_SELECT_INL_H_
#else
#define TERSOR_KERNELS_BLOCKTOPK_SELECT_INL_H_
#endif

#include "kernels/host/simd-inl.h"

#include <tersor/codecs/blocktopk.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// Values that fill whole vectors.
struct Keys {
  const float* values;
  std::size_t count;
};

HWY_INLINE VI32 keys_at(const float* values) { return keys_of(load_values(values)); }

/// Counts the keys that reach `key`.
HWY_INLINE std::size_t count_from(const Keys& keys, std::uint32_t key) {
  const VI32 bound = gt_bound(key);
  VI32 counts[4] = {hn::Zero(I32()), hn::Zero(I32()), hn::Zero(I32()), hn::Zero(I32())};
  std::size_t i = 0;
  for (; i + 4 * kLanes <= keys.count; i += 4 * kLanes)
    for (std::size_t k = 0; k < 4; ++k)
      counts[k] = hn::Sub(
          counts[k], hn::VecFromMask(I32(), hn::Gt(keys_at(keys.values + i + k * kLanes), bound)));
  for (; i < keys.count; i += kLanes)
    counts[0] = hn::Sub(counts[0], hn::VecFromMask(I32(), hn::Gt(keys_at(keys.values + i), bound)));
  const VI32 all = hn::Add(hn::Add(counts[0], counts[1]), hn::Add(counts[2], counts[3]));
  return static_cast<std::size_t>(hn::GetLane(hn::SumOfLanes(I32(), all)));
}

/// The range of the k-th largest key. `count` keys reach `low`: at least k, unless low is 1.
/// `above` keys, fewer than k, reach `high`.
struct Bracket {
  std::uint32_t low, high;
  std::size_t count, above;

  /// Replaces one end by a key that `found` keys reach. Returns true if at least k keys reach the
  /// key.
  HWY_INLINE bool take(std::uint32_t key, std::size_t found, std::size_t k) {
    const bool reached = found >= k;
    (reached ? low : high) = key;
    (reached ? count : above) = found;
    return reached;
  }
};

/// How to narrow a bracket. The search ends when at most `max_count` keys reach the lower end. Step
/// sizes double until a step would halve the bracket. The first step moves away from the end found
/// last.
struct Narrowing {
  std::size_t k, max_count;
  std::uint32_t step;
  bool reached;
};

HWY_INLINE void narrow(const Keys& keys, Narrowing narrowing, Bracket& bracket) {
  while (bracket.count > narrowing.max_count && bracket.high - bracket.low > 1) {
    const std::uint32_t step = std::min(narrowing.step, (bracket.high - bracket.low) / 2);
    const std::uint32_t key = narrowing.reached ? bracket.low + step : bracket.high - step;
    narrowing.reached = bracket.take(key, count_from(keys, key), narrowing.k);
    narrowing.step = 2 * step;
  }
}

/// Returns one bit per key of kLanes keys: set if the key is greater than `bound`.
HWY_INLINE std::uint64_t bits_from(VI32 keys, VI32 bound) {
  std::uint8_t bytes[8];
  hn::StoreMaskBits(I32(), hn::Gt(keys, bound), bytes);
  std::conditional_t<(kLanes > 8), std::uint16_t, std::uint8_t> bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

/// Selects block after block. The starting point of the search never changes the selection.
class Selector {
 public:
  static constexpr std::size_t kGroup = 4;  // vectors per update()
  static constexpr std::size_t kBatch = 4;  // indices written at once
  static constexpr std::size_t kWord = 64;  // values per word of marks

  explicit Selector(std::size_t k) : k_(k) {}

  /// Passes the next block's values from the i-th on. value(k) returns vector k of kGroup vectors.
  template <typename ValueAt>
  HWY_INLINE void update(std::size_t i, const ValueAt& value) {
    mark(i, gt_bound(guess_), value);
  }

  /// Writes the indices of the k largest values of a block in ascending order, without zeros, and
  /// returns their number. The whole block must have been passed to update(). `absmax` is the
  /// largest key. `indices` must have space for a block and kBatch more. Calls on_word(i) for each
  /// kWord values from i on.
  template <typename OnWord>
  HWY_INLINE std::size_t select(const float* p, std::uint32_t absmax, std::uint16_t* indices,
                                const OnWord& on_word) {
    const Keys all{p, BlocktopkBlock::kValues};
    Bracket bracket{1, absmax + 1, all.count, 0};
    const std::uint32_t guess = std::min(guess_, absmax + 1);
    const bool reached = bracket.take(guess, count_marks(), k_);
    narrow(all, {k_, 2 * k_ + kLanes, kFirstStep, reached}, bracket);
    if (bracket.low != guess_) {
      const VI32 bound = gt_bound(bracket.low);
      for (std::size_t i = 0; i < all.count; i += kGroup * kLanes)
        mark(i, bound, [&](std::size_t k) HWY_ATTR { return load_values(p + i + k * kLanes); });
    }
    std::size_t found = indices_of_marks(indices, on_word);
    if (found > k_) found = choose(p, bracket, found, indices);
    if (found == k_) guess_ = std::max(bracket.low, kFirstStep + 1) - kFirstStep;
    return found;
  }

 private:
  // 1/16 octave: the distance between the k-th and the 2k-th of normally distributed values.
  static constexpr std::uint32_t kFirstStep = 1u << 19;

  /// Marks the keys of kGroup vectors that are greater than `bound`.
  template <typename ValueAt>
  HWY_INLINE void mark(std::size_t i, VI32 bound, const ValueAt& value) {
    std::uint64_t bits = 0;
    TERSOR_UNROLL_4
    for (std::size_t k = 0; k < kGroup; ++k)
      bits |= bits_from(keys_of(value(k)), bound) << k * kLanes;
    std::uint64_t& word = marks_[i / kWord];
    word = (i % kWord == 0 ? 0 : word) | bits << i % kWord;
  }

  HWY_INLINE std::size_t count_marks() const {
    std::size_t ones = 0;
    for (const std::uint64_t word : marks_) ones += static_cast<std::size_t>(std::popcount(word));
    return ones;
  }

  /// Writes the indices of the marks in ascending order and returns their number. kBatch indices
  /// are always written at once, which makes the branch predictable for most words.
  template <typename OnWord>
  HWY_INLINE std::size_t indices_of_marks(std::uint16_t* indices, const OnWord& on_word) const {
    std::size_t found = 0;
    for (std::size_t i = 0; i < BlocktopkBlock::kValues; i += kWord) {
      std::uint64_t word = marks_[i / kWord];
      std::uint16_t* next = indices + found;
      found += static_cast<std::size_t>(std::popcount(word));
      do {
        for (std::size_t k = 0; k < kBatch; ++k, word &= word - 1)
          *next++ =
              static_cast<std::uint16_t>(i + static_cast<std::size_t>(std::countr_zero(word)));
      } while (HWY_UNLIKELY(word != 0));
      on_word(i);
    }
    return found;
  }

  /// Reduces `found` candidates, more than k, to the selected values.
  HWY_INLINE std::size_t choose(const float* p, Bracket& bracket, std::size_t found,
                                std::uint16_t* indices) {
    const std::size_t whole = (found + kLanes - 1) / kLanes * kLanes;
    for (std::size_t i = 0; i < found; ++i) candidates_[i] = p[indices[i]];
    std::fill(candidates_ + found, candidates_ + whole, 0.0f);
    bracket.count = found;
    narrow({candidates_, whole}, {k_, k_, (bracket.high - bracket.low) / 2, true}, bracket);
    std::size_t ties = bracket.count == k_ ? k_ : k_ - bracket.above, selected = 0;
    for (std::size_t i = 0; i < found; ++i) {
      const std::uint32_t key = magnitude_bits(candidates_[i]);
      const std::size_t is_above = key >= bracket.high;
      const std::size_t is_tie = (key >= bracket.low) & (is_above ^ 1) & (ties > 0);
      ties -= is_tie;
      indices[selected] = indices[i];
      selected += is_above + is_tie;
    }
    return selected;
  }

  const std::size_t k_;
  std::uint32_t guess_ = 0x3f800000u;
  std::uint64_t marks_[BlocktopkBlock::kValues / kWord];
  alignas(64) float candidates_[BlocktopkBlock::kValues];
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_BLOCKTOPK_SELECT_INL_H_
