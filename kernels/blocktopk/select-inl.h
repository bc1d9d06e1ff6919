// The k largest of a block of 4,096 values in the first-level cache, for one instruction set. A
// threshold that a few more than k keys reach is found by bisection, beginning where the block
// before had its own; among the candidates the k-th key is found in the same way, exactly.
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

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// Values, as many as fill whole vectors.
struct Keys {
  const float* values;
  std::size_t count;
};

HWY_INLINE VI32 keys_at(const float* values) {
  return hn::And(hn::BitCast(I32(), hn::LoadU(F32(), values)), hn::Set(I32(), 0x7fffffff));
}

/// What keys from `key` on are greater than.
HWY_INLINE VI32 before_key(std::uint32_t key) {
  return hn::Set(I32(), static_cast<std::int32_t>(key) - 1);
}

/// How many keys reach `key`.
HWY_INLINE std::size_t count_from(const Keys& keys, std::uint32_t key) {
  const VI32 before = before_key(key);
  VI32 counts[4] = {hn::Zero(I32()), hn::Zero(I32()), hn::Zero(I32()), hn::Zero(I32())};
  std::size_t i = 0;
  for (; i + 4 * kLanes <= keys.count; i += 4 * kLanes)
    for (std::size_t k = 0; k < 4; ++k)
      counts[k] = hn::Sub(
          counts[k], hn::VecFromMask(I32(), hn::Gt(keys_at(keys.values + i + k * kLanes), before)));
  for (; i < keys.count; i += kLanes)
    counts[0] =
        hn::Sub(counts[0], hn::VecFromMask(I32(), hn::Gt(keys_at(keys.values + i), before)));
  const VI32 all = hn::Add(hn::Add(counts[0], counts[1]), hn::Add(counts[2], counts[3]));
  return static_cast<std::size_t>(hn::GetLane(hn::SumOfLanes(I32(), all)));
}

/// Between which keys the k-th largest lies: as many as `count` reach `low`, at least k unless that
/// is 1; `above` reach `high`, fewer than k.
struct Bracket {
  std::uint32_t low, high;
  std::size_t count, above;
};

/// How to narrow a bracket: until at most `enough` keys reach its lower end, in steps from `key`
/// that double until they would halve it.
struct Narrowing {
  std::size_t k, enough;
  std::uint32_t key, step;
};

HWY_INLINE void narrow(const Keys& keys, Narrowing way, Bracket& bracket) {
  while (bracket.count > way.enough && bracket.high - bracket.low > 1) {
    const std::size_t found = count_from(keys, way.key);
    const bool reached = found >= way.k;
    (reached ? bracket.low : bracket.high) = way.key;
    (reached ? bracket.count : bracket.above) = found;
    const std::uint32_t step = std::min(way.step, (bracket.high - bracket.low) / 2);
    way.key = reached ? bracket.low + step : bracket.high - step;
    way.step = 2 * step;
  }
}

/// A bit for each key of a block: whether it reaches `key`. They are read as words only when all
/// are written: a load that needs several stores would wait for them.
struct KeyBits {
  static constexpr std::size_t kWord = 64;

  HWY_INLINE void set(const Keys& keys, std::uint32_t key) {
    const VI32 before = before_key(key);
    for (std::size_t i = 0; i < keys.count; i += std::max<std::size_t>(kLanes, 8)) {
      if constexpr (kLanes >= 8) {
        hn::StoreMaskBits(I32(), hn::Gt(keys_at(keys.values + i), before), bytes + i / 8);
      } else {
        unsigned byte = 0;
        for (std::size_t k = 0; k < 8; k += kLanes) {
          std::uint8_t few[8] = {};
          hn::StoreMaskBits(I32(), hn::Gt(keys_at(keys.values + i + k), before), few);
          byte |= static_cast<unsigned>(few[0]) << k;
        }
        bytes[i / 8] = static_cast<std::uint8_t>(byte);
      }
    }
  }

  HWY_INLINE std::uint64_t word(std::size_t first) const {
    std::uint64_t bits;
    std::memcpy(&bits, bytes + first / 8, sizeof bits);
    return bits;
  }

  std::uint8_t bytes[BlocktopkBlock::kValues / 8 + 8];
};

/// The places of the keys of a block that reach `key`, ascending; room for all.
HWY_INLINE std::size_t places_from(const Keys& keys, std::uint32_t key, std::uint16_t* places) {
  KeyBits bits;
  bits.set(keys, key);
  std::size_t found = 0;
  for (std::size_t i = 0; i < keys.count; i += KeyBits::kWord)
    for (std::uint64_t word = bits.word(i); word != 0; word &= word - 1)
      places[found++] =
          static_cast<std::uint16_t>(i + static_cast<std::size_t>(std::countr_zero(word)));
  return found;
}

/// Selects block after block. Where a threshold is looked for first changes no choice.
class Selector {
 public:
  explicit Selector(std::size_t k) : k_(k) {}

  /// Writes the places of the k largest of a block, ascending, and returns how many there are:
  /// zeros are left out. `absmax` is the largest key; `places` has room for a block.
  HWY_INLINE std::size_t select(const float* p, std::uint32_t absmax, std::uint16_t* places) {
    const Keys all{p, BlocktopkBlock::kValues};
    Bracket bracket{1, absmax + 1, all.count, 0};
    const std::uint32_t guess = std::clamp<std::uint32_t>(guess_, 1, std::max(absmax, 1u));
    narrow(all, {k_, 2 * k_ + kLanes, guess, kFirstStep}, bracket);
    std::size_t found = places_from(all, bracket.low, places);
    if (found > k_) found = choose(p, bracket, found, places);
    if (found == k_) guess_ = std::max(bracket.low, kFirstStep) - kFirstStep;
    return found;
  }

 private:
  // A sixteenth of an octave: between the k-th and the 2k-th of normally distributed values.
  static constexpr std::uint32_t kFirstStep = 1u << 19;

  /// Of `found` candidates, more than k, those that are kept.
  HWY_INLINE std::size_t choose(const float* p, Bracket& bracket, std::size_t found,
                                std::uint16_t* places) {
    const std::size_t whole = (found + kLanes - 1) / kLanes * kLanes;
    for (std::size_t i = 0; i < found; ++i) candidates_[i] = p[places[i]];
    std::fill(candidates_ + found, candidates_ + whole, 0.0f);
    bracket.count = found;
    const std::uint32_t half = (bracket.high - bracket.low) / 2;
    narrow({candidates_, whole}, {k_, k_, bracket.low + half, half}, bracket);
    std::size_t ties = bracket.count == k_ ? k_ : k_ - bracket.above, kept = 0;
    for (std::size_t i = 0; i < found; ++i) {
      const std::uint32_t key = magnitude_bits(candidates_[i]);
      const bool is_tie = key >= bracket.low && key < bracket.high && ties > 0;
      ties -= is_tie ? 1 : 0;
      places[kept] = places[i];
      kept += is_tie || key >= bracket.high ? 1 : 0;
    }
    return kept;
  }

  const std::size_t k_;
  std::uint32_t guess_ = 0x3f800000u;
  alignas(64) float candidates_[BlocktopkBlock::kValues];
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_BLOCKTOPK_SELECT_INL_H_
