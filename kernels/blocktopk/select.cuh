// Selects the k largest of a block of 4,096 values in shared memory, with one warp and without a
// barrier of the block of threads. A key is a magnitude's bits.
//
// If the maxima of k groups of values reach a key, at least k values reach the key. The warp holds
// the maxima in registers, and searches a key among the maxima. The warp then lists the values that
// reach the key, about 50 for k = 41, and searches the k-th key in the list. For a large k, or if
// too many values reach the key, the warp searches among all values.
#pragma once

#include "kernels/blocktopk/lists.cuh"
#include "kernels/device/instructions.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// A group is the values of a unit that one thread holds.
constexpr unsigned kBlocktopkGroupValues = kUnitValues / kWarpThreads;
constexpr unsigned kBlocktopkGroups = kBlocktopkValues / kBlocktopkGroupValues;
static_assert(kBlocktopkGroupValues == 16 && kBlocktopkGroups == 256);

/// A search by bisection. At least `wanted` keys reach `low`, and fewer reach `high`.
struct BlocktopkSearch {
  std::uint32_t low, high;
  std::uint32_t reach;  // number of keys that reach `low`

  /// Narrows until at most `max_count` keys reach `low`, or until `low` is the key number `wanted`.
  /// The first key tried is `guess`, if possible, the second one `step` further, then the middle.
  /// count(key) returns how many keys reach `key`.
  template <class Count>
  TERSOR_DEVICE void narrow(std::uint32_t wanted, std::uint32_t max_count, std::uint32_t guess,
                            std::uint32_t step, const Count& count) {
    TERSOR_KEEP_LOOP
    for (; reach > max_count && high - low > 1; step = 0) {
      if (guess <= low || guess >= high) guess = low + (high - low) / 2;
      const std::uint32_t found = count(guess);
      const bool is_low = found >= wanted;
      low = is_low ? guess : low;
      reach = is_low ? found : reach;
      high = is_low ? high : guess;
      guess = is_low ? guess + step : guess - step;
    }
  }
};

/// The selected values: bit i of word w of a thread is value 128 · thread + 64 · w + i.
struct BlocktopkSelectedBits {
  std::uint64_t word[2];

  TERSOR_DEVICE unsigned count() const {
    return static_cast<unsigned>(__popcll(word[0]) + __popcll(word[1]));
  }
  /// Calls visit(value index) in ascending order.
  template <class Visit>
  TERSOR_DEVICE void for_each(unsigned thread, const Visit& visit) const {
    std::uint64_t bits = word[0], next = word[1];
    unsigned base = thread * (kBlocktopkValues / kWarpThreads);
    TERSOR_KEEP_LOOP
    for (; (bits | next) != 0; bits &= bits - 1) {
      if (bits == 0) {
        bits = next;
        next = 0;
        base += 64;
      }
      visit(base + static_cast<unsigned>(__ffsll(static_cast<long long>(bits))) - 1);
    }
  }
};

class BlocktopkSelect {
 public:
  /// Enough for any k up to kMaxSearched, unless large values lie close together.
  static constexpr unsigned kMaxListed = 384;
  struct Shared {
    SharedArray<float, kMaxListed> value;
    SharedArray<std::uint16_t, kMaxListed> index;
    SharedArray<std::uint16_t, kBlocktopkGroups> group;          // index of its first value
    SharedArray<std::uint32_t, kBlocktopkValues / 32> selected;  // a bit per value
  };

  TERSOR_DEVICE BlocktopkSelect(const BlocktopkSlot& slot, Shared& shared)
      : slot_(slot), shared_(shared) {
    for_each_own_group([&](unsigned group, unsigned first) {
      float group_max = 0;
      slot.for_each_in_group(first, [&](unsigned, unsigned, float value) {
        group_max = larger_magnitude(group_max, value);
      });
      maximum_[group] = bits_of(group_max);
      largest_ = maximum_[group] > largest_ ? maximum_[group] : largest_;
    });
    largest_ = warp_.maximum(largest_);
  }

  /// Returns the largest key. If the block has a NaN, the key exceeds the key of infinity.
  TERSOR_DEVICE std::uint32_t largest() const { return largest_; }

  /// Selects the `wanted` largest values, or all values other than zero if fewer are left. The
  /// lowest indices win a tie. `guess` is a key from the block before, and is replaced. Contains
  /// barriers of the warp.
  TERSOR_DEVICE BlocktopkSelectedBits operator()(std::uint32_t wanted, std::uint32_t& guess) const {
    std::uint32_t min_key = 1;
    if (wanted <= kMaxSearched) {
      const auto count = [&](std::uint32_t key) {
        unsigned count = 0;
        for_each_own_group([&](unsigned group, unsigned) { count += maximum_[group] >= key; });
        return warp_.add(count);
      };
      BlocktopkSearch search{min_key, largest_ + 1, count(min_key)};
      search.narrow(wanted, wanted + kExtraKeys, guess, kStep, count);
      min_key = guess = search.low;
      const unsigned listed = list(min_key);
      std::uint32_t first = min_key + kListedStep;
      if (listed <= kMaxListed)
        return select_among(min_key, wanted, first, [&](const auto& visit) {
          for (unsigned i = thread_; i < listed; i += kWarpThreads)
            visit(shared_.index.get(i), shared_.value.get(i));
        });
    }
    return select_among(min_key, wanted, guess, [&](const auto& visit) {
      TERSOR_KEEP_LOOP
      for (unsigned at = 0; at < kBlocktopkValues; at += kUnitValues)
        slot_.for_each_in_group(
            at + thread_ * BlocktopkSlot::kRow,
            [&](unsigned, unsigned index, float value) { visit(index, value); });
    });
  }

 private:
  /// Calls visit(group, index of its first value) for the groups of this thread.
  template <class Visit>
  TERSOR_DEVICE void for_each_own_group(const Visit& visit) const {
    TERSOR_UNROLL
    for (unsigned group = 0; group < BlocktopkSlot::kUnits; ++group)
      visit(group, group * kUnitValues + thread_ * BlocktopkSlot::kRow);
  }

  /// More maxima than necessary may reach the key, because a few more values are cheaper than a
  /// longer search.
  static constexpr unsigned kExtraKeys = 8;
  /// Above this k, too many values reach the key of the maxima.
  static constexpr unsigned kMaxSearched = kBlocktopkGroups * 3 / 4;
  /// Second steps of searches, an eighth and a 32nd of a power of two. They are about the
  /// difference of the maxima's keys in neighbouring blocks, and of the k-th keys.
  static constexpr std::uint32_t kStep = 1u << 20, kListedStep = 1u << 18;

  /// Lists the values that reach `key`. Returns their number, or more than kMaxListed.
  TERSOR_DEVICE unsigned list(std::uint32_t key) const {
    unsigned groups = 0, listed = 0;
    for_each_own_group([&](unsigned group, unsigned first) {
      const std::uint32_t all = warp_.ballot(maximum_[group] >= key);
      const unsigned at = groups + count_bits(all & ((1u << thread_) - 1));
      if (maximum_[group] >= key) shared_.group.set(at, static_cast<std::uint16_t>(first));
      groups += count_bits(all);
    });
    warp_.sync();
    TERSOR_KEEP_LOOP
    for (unsigned at = 0; at < groups && listed <= kMaxListed; at += kWarpThreads) {
      const bool is_group = at + thread_ < groups;
      const unsigned first = is_group ? shared_.group.get(at + thread_) : 0;
      std::uint32_t reaching = 0;
      if (is_group)
        slot_.for_each_in_group(first, [&](unsigned i, unsigned, float value) {
          reaching |= reaches(value, key) ? 1u << i : 0u;
        });
      const unsigned own = count_bits(reaching), before = warp_.exclusive_sum(own);
      unsigned to = listed + before;
      listed += warp_.shuffle(before + own, kWarpThreads - 1);
      for (; reaching != 0 && listed <= kMaxListed; reaching &= reaching - 1, ++to) {
        const unsigned index =
            first + BlocktopkSlot::index_in_group(
                        static_cast<unsigned>(__ffs(static_cast<int>(reaching))) - 1);
        shared_.index.set(to, static_cast<std::uint16_t>(index));
        shared_.value.set(to, slot_.get(index));
      }
    }
    return listed;
  }

  TERSOR_DEVICE static bool reaches(float value, std::uint32_t key) {
    return fabsf(value) >= float_of(key);
  }

  /// Selects among the values for which for_each calls visit(index, value). At least `wanted`
  /// values reach `min_key`, or the other values are zeros. The search begins at `guess` and
  /// replaces `guess` by the k-th key.
  template <class ForEach>
  TERSOR_DEVICE BlocktopkSelectedBits select_among(std::uint32_t min_key, std::uint32_t wanted,
                                                   std::uint32_t& guess,
                                                   const ForEach& for_each) const {
    const auto count_if = [&](const auto& predicate) {
      unsigned count = 0;
      for_each([&](unsigned index, float value) { count += predicate(index, value); });
      return warp_.add(count);
    };
    const auto count = [&](std::uint32_t key) {
      return count_if([&](unsigned, float value) { return reaches(value, key); });
    };
    TERSOR_UNROLL
    for (unsigned i = thread_; i < kBlocktopkValues / 32; i += kWarpThreads)
      shared_.selected.set(i, 0);
    warp_.sync();
    BlocktopkSearch search{min_key, largest_ + 1, count(min_key)};
    search.narrow(wanted, wanted, guess, kListedStep, count);
    guess = search.low;
    // Among equal keys, a low index counts as large.
    BlocktopkSearch ties{1, kBlocktopkValues + 1, search.reach};
    const auto is_selected = [&](unsigned index, float value, std::uint32_t tie) {
      return reaches(value, search.low + 1) ||
             (reaches(value, search.low) && kBlocktopkValues - index >= tie);
    };
    ties.narrow(wanted, wanted, 0, 0, [&](std::uint32_t tie) {
      return count_if([&](unsigned index, float value) { return is_selected(index, value, tie); });
    });
    for_each([&](unsigned index, float value) {
      if (is_selected(index, value, ties.low)) shared_.selected.add(index / 32, 1u << index % 32);
    });
    warp_.sync();
    std::uint32_t word[4];
    TERSOR_UNROLL
    for (unsigned i = 0; i < 4; ++i) word[i] = shared_.selected.get(4 * thread_ + i);
    return {{word[0] | std::uint64_t{word[1]} << 32, word[2] | std::uint64_t{word[3]} << 32}};
  }

  const DeviceWarp warp_{};
  const unsigned thread_ = warp_.thread_rank();
  const BlocktopkSlot& slot_;
  Shared& shared_;
  std::uint32_t maximum_[BlocktopkSlot::kUnits];  // of each group of this thread
  std::uint32_t largest_ = 0;                     // of the warp
};

}  // namespace tersor::kernels
