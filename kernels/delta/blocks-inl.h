// The lists of a block of weight deltas, for one instruction set.
#if defined(TERSOR_KERNELS_DELTA_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_DELTA_BLOCKS_INL_H_
#undef TERSOR_KERNELS_DELTA_BLOCKS_INL_H_
#else
#define TERSOR_KERNELS_DELTA_BLOCKS_INL_H_
#endif

#include "kernels/bits/bits.h"
#include "kernels/delta/classes-inl.h"
#include "kernels/host/checksum.h"

#include <tersor/align.h>

#include <hwy/cache_control.h>
#include <algorithm>
#include <bit>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// A block's lists: their lengths and widths.
struct Head {
  unsigned changed[kDeltaClasses] = {}, widths[kDeltaClasses] = {};
  unsigned all = 0;        // changed values
  unsigned big_steps = 0;  // steps with magnitudes above 1
  unsigned big_gap_width = 0, step_width = 0;
};

/// Appends the unary codes of `numbers[i] >> shift`.
HWY_INLINE void put_quotients(PlaneWriter& codes, const std::uint16_t* numbers, unsigned count,
                              unsigned shift) {
  unsigned i = 0;
  for (; i + 4 <= count; i += 4) {
    const unsigned first = numbers[i] >> shift;
    const unsigned second = first + 1 + (numbers[i + 1] >> shift);
    const unsigned third = second + 1 + (numbers[i + 2] >> shift);
    const unsigned fourth = third + 1 + (numbers[i + 3] >> shift);
    constexpr std::uint64_t kOne = 1;
    if (HWY_LIKELY(fourth < kMaxFieldBits))
      codes.put(kOne << first | kOne << second | kOne << third | kOne << fourth, fourth + 1);
    else
      for (unsigned j = i; j < i + 4; ++j) codes.put_unary(numbers[j] >> shift);
  }
  for (; i < count; ++i) codes.put_unary(numbers[i] >> shift);
}

/// Writes a block's words. Returns the number of words.
template <class L>
std::size_t write_lists(const Head& head, unsigned classes, DeltaScratch& scratch) {
  using Bits = typename L::Bits;
  PlaneWriter fields(scratch.words);
  for (unsigned c = 0; c < classes; ++c) {
    fields.put(head.changed[c], kDeltaCountBits);
    fields.put(head.widths[c], kDeltaWidthBits);
  }
  fields.put(head.big_steps, kDeltaCountBits);
  fields.put(head.big_gap_width, kDeltaWidthBits);
  fields.put(head.step_width, kDeltaStepBits);
  static_assert(4 * kDeltaMaxWidth <= kMaxFieldBits);
  const auto put_low_parts = [&](const std::uint16_t* gaps, unsigned count, unsigned width) {
    if (width == 0) return;
    const std::uint64_t mask = (1u << width) - 1;
    unsigned i = 0;
    for (; i + 4 <= count; i += 4)
      fields.put((gaps[i] & mask) | (gaps[i + 1] & mask) << width |
                     (gaps[i + 2] & mask) << 2 * width | (gaps[i + 3] & mask) << 3 * width,
                 4 * width);
    for (; i < count; ++i) fields.put(gaps[i] & mask, width);
  };
  for (unsigned c = 0; c < classes; ++c)
    put_low_parts(scratch.gaps[c], head.changed[c], head.widths[c]);
  put_low_parts(scratch.big_gaps, head.big_steps, head.big_gap_width);
  for (unsigned c = 0; c < classes; ++c) {
    const auto* steps = reinterpret_cast<const Bits*>(scratch.steps[c]);
    for (unsigned i = 0; i < head.changed[c]; i += 64) {
      const unsigned valid = std::min(64u, head.changed[c] - i);
      fields.put_wide(negative_mask<L>(steps + i, valid), valid);
    }
  }
  std::size_t words = fields.finish();
  PlaneWriter codes(scratch.words + 4 * words);
  for (unsigned c = 0; c < classes; ++c)
    put_quotients(codes, scratch.gaps[c], head.changed[c], head.widths[c]);
  put_quotients(codes, scratch.big_gaps, head.big_steps, head.big_gap_width);
  const auto log = [](std::uint64_t m) { return static_cast<unsigned>(std::bit_width(m + 1)) - 1; };
  for (unsigned i = 0; i < head.big_steps; ++i) {
    const std::uint64_t m = scratch.magnitudes[i];
    codes.put_unary(
        head.step_width == kDeltaGamma ? log(m) : static_cast<std::uint32_t>(m >> head.step_width));
  }
  words += codes.finish();
  PlaneWriter rest(scratch.words + 4 * words);
  for (unsigned i = 0; i < head.big_steps; ++i) {
    const std::uint64_t m = scratch.magnitudes[i];
    const unsigned width = head.step_width == kDeltaGamma ? log(m) : head.step_width;
    rest.put_wide((head.step_width == kDeltaGamma ? m + 1 : m) & ((std::uint64_t{1} << width) - 1),
                  width);
  }
  return words + rest.finish();
}

template <class L>
DeltaEncodedBlock encode_block(const DeltaBlock& block, const std::byte* now_bytes,
                               DeltaScratch& scratch) {
  using Bits = typename L::Bits;
  const auto* base = reinterpret_cast<const Bits*>(block.base);
  const auto* now = reinterpret_cast<const Bits*>(now_bytes);
  Head head;
  for (std::size_t i = 0; i < block.count; i += 64) {
    const std::size_t valid = std::min<std::size_t>(64, block.count - i);
    std::uint64_t ones = changed_mask(base + i, now + i, valid);
    // Four places without a branch, because few words have more.
    std::uint16_t* places = scratch.places + head.all;
    head.all += static_cast<unsigned>(std::popcount(ones));
    for (bool more = ones != 0; more; more = ones != 0)
      for (unsigned j = 0; j < 4; ++j, ones &= ones - 1)
        *places++ = static_cast<std::uint16_t>(i + static_cast<unsigned>(std::countr_zero(ones)));
  }
  if (head.all == 0) return {0, 0};
  find_classes<L>(base, block.count, block.classes, scratch);
  int last[kDeltaClasses] = {-1, -1, -1, -1};
  for (unsigned i = 0; i < head.all; ++i) {
    const unsigned place = scratch.places[i];
    unsigned c = 0, rank = place;
    if (block.classes.count != 1) {
      c = L::class_of(base[place], block.classes);
      const std::uint64_t below = (std::uint64_t{1} << place % 64) - 1;
      rank = scratch.before[c][place / 64] +
             static_cast<unsigned>(std::popcount(scratch.masks[c][place / 64] & below));
    }
    const unsigned at = head.changed[c]++;
    scratch.gaps[c][at] = static_cast<std::uint16_t>(static_cast<int>(rank) - last[c] - 1);
    last[c] = static_cast<int>(rank);
    reinterpret_cast<Bits*>(scratch.steps[c])[at] = L::step(base[place], now[place]);
  }
  unsigned before = 0, index = 0;  // after the last big step
  std::uint64_t gamma_bits = 0;
  for (unsigned c = 0; c < block.classes.count; ++c)
    for (unsigned i = 0; i < head.changed[c]; ++i, ++index) {
      // Without branches, because signs and big steps are random.
      const Bits step = reinterpret_cast<const Bits*>(scratch.steps[c])[i];
      const auto signs =
          static_cast<Bits>(static_cast<typename L::Signed>(step) >> (L::kWidth - 1));
      const auto magnitude = static_cast<Bits>((step ^ signs) - signs);
      const unsigned is_big = magnitude != 1;
      scratch.big_gaps[head.big_steps] = static_cast<std::uint16_t>(index - before);
      scratch.magnitudes[head.big_steps] = magnitude - std::uint64_t{2};
      gamma_bits += is_big * (2 * static_cast<unsigned>(std::bit_width(magnitude - 1ul)) - 1);
      head.big_steps += is_big;
      before = is_big != 0 ? index + 1 : before;
    }
  std::uint64_t field_bits =
      (kDeltaCountBits + kDeltaWidthBits) * (block.classes.count + 1) + kDeltaStepBits;
  std::uint64_t code_bits = 0, rest_bits = 0;
  const auto take = [&](const Width& width, unsigned count, std::uint64_t& low_bits) {
    low_bits += std::uint64_t{width.low_bits} * count;
    code_bits += width.bits - std::uint64_t{width.low_bits} * count;
    return width.low_bits;
  };
  for (unsigned c = 0; c < block.classes.count; ++c)
    head.widths[c] = take(best_width(scratch.gaps[c], head.changed[c], kDeltaMaxWidth),
                          head.changed[c], field_bits);
  head.big_gap_width = take(best_width(scratch.big_gaps, head.big_steps, kDeltaMaxWidth),
                            head.big_steps, field_bits);
  const Width rice = best_width(scratch.magnitudes, head.big_steps, kDeltaGamma - 1);
  if (gamma_bits <= rice.bits) {
    head.step_width = kDeltaGamma;
    code_bits += (gamma_bits + head.big_steps) / 2;
    rest_bits += (gamma_bits - head.big_steps) / 2;
  } else {
    head.step_width = take(rice, head.big_steps, rest_bits);
  }
  const auto words = [](std::uint64_t bits) { return (bits + 31) / 32; };
  const std::uint64_t size = words(field_bits + head.all) + words(code_bits) + words(rest_bits);
  if (size >= ceil_div(block.count * sizeof(Bits), 4) || size >= kDeltaPlain)
    return {kDeltaPlain, head.all};
  return {static_cast<std::uint16_t>(write_lists<L>(head, block.classes.count, scratch)), head.all};
}

/// Reads a block's lists.
class ListReader {
 public:
  ListReader(const std::byte* words, std::size_t size, DeltaScratch& scratch)
      : scratch_(scratch), size_(size) {
    std::memcpy(scratch.words, words, 4 * size);
    std::memset(scratch.words + 4 * size, 0, 64);
  }

  /// Reads the head and the quotients. Returns null, or a sentence about the fault.
  const char* read_head(unsigned classes, std::size_t count) {
    const auto take = [&](unsigned width) {
      bit_ += width;
      return static_cast<unsigned>(field_at(scratch_.words, bit_ - width, width));
    };
    for (unsigned c = 0; c < classes; ++c) {
      head.changed[c] = take(kDeltaCountBits);
      head.widths[c] = take(kDeltaWidthBits);
      head.all += head.changed[c];
      if (head.widths[c] > kDeltaMaxWidth) return kInvalidHead;
    }
    head.big_steps = take(kDeltaCountBits);
    head.big_gap_width = take(kDeltaWidthBits);
    head.step_width = take(kDeltaStepBits);
    if (head.all == 0 || head.all > count || head.big_steps > head.all ||
        head.big_gap_width > kDeltaMaxWidth)
      return kInvalidHead;
    for (unsigned c = 0; c < classes; ++c) {
      low_parts[c] = bit_;
      bit_ += std::uint64_t{head.changed[c]} * head.widths[c];
    }
    big_low_parts = bit_;
    signs = bit_ + std::uint64_t{head.big_steps} * head.big_gap_width;
    bit_ = signs + head.all;
    if (!pad()) return kInvalidHead;
    const std::size_t first = bit_ / 32, quotients = head.all + 2 * std::size_t{head.big_steps};
    const std::size_t end =
        read_quotients(scratch_.words + 4 * first, size_ - first, quotients, scratch_.quotients);
    if (end == kInvalidPlane) return "the unary codes of a block are damaged";
    bit_ = (first + ceil_div(end, 32)) * 32;
    return nullptr;
  }

  /// Reads the next big step's low bits. `width` is at most 63.
  std::uint64_t rest(unsigned width) {
    if (bit_ + width > 32 * size_) return bit_ = ~std::uint64_t{0} / 2;  // found by `ends`
    bit_ += width;
    return wide_field_at(scratch_.words, bit_ - width, width);
  }
  /// True if the last field ends in the last word, before zeros.
  bool ends() { return pad() && bit_ == 32 * size_; }

  Head head;
  std::uint64_t low_parts[kDeltaClasses], big_low_parts = 0, signs = 0;  // first bits

 private:
  static constexpr const char* kInvalidHead = "the head of a block is damaged";

  /// Skips zeros up to a whole word. Returns false for a one, or beyond the end.
  bool pad() {
    if (bit_ > 32 * size_) return false;
    const unsigned rest = static_cast<unsigned>(-bit_ % 32);
    const bool zeros = field_at(scratch_.words, bit_, rest) == 0;
    bit_ += rest;
    return zeros;
  }

  DeltaScratch& scratch_;
  const std::size_t size_;
  std::uint64_t bit_ = 0;
};

/// Finds the places of the changed values, and requests the values from memory. Returns false if a
/// rank is beyond its class.
template <class L>
bool read_places(const ListReader& lists, const DeltaBlock& block, DeltaScratch& scratch) {
  unsigned index = 0;
  for (unsigned c = 0; c < block.classes.count; ++c) {
    const bool classes = block.classes.count != 1;
    const std::uint64_t values =
        classes ? scratch.before[c][ceil_div(block.count, 64)] : block.count;
    const unsigned width = lists.head.widths[c];
    std::uint64_t rank = 0, bit = lists.low_parts[c];  // the next rank
    for (unsigned i = 0; i < lists.head.changed[c]; ++i, ++index, bit += width) {
      rank +=
          (std::uint64_t{scratch.quotients[index]} << width) + field_at(scratch.words, bit, width);
      if (rank >= values) return false;
      auto place = static_cast<unsigned>(rank);
      hwy::Prefetch(block.base + place * sizeof(typename L::Bits));
      if (classes) {
        const unsigned word = scratch.word[scratch.first[c] + rank];
        place = 64 * word + select_one(scratch.masks[c][word], place - scratch.before[c][word]);
      }
      scratch.places[index] = static_cast<std::uint16_t>(place);
      ++rank;
    }
  }
  return true;
}

/// Reads the steps. Returns false if a step or an index is too large, or if words remain.
template <class L>
bool read_steps(ListReader& lists, DeltaScratch& scratch) {
  using Bits = typename L::Bits;
  const Head& head = lists.head;
  auto* steps = reinterpret_cast<Bits*>(scratch.steps);
  for (unsigned i = 0; i < head.all; ++i)
    steps[i] = static_cast<Bits>(1 - 2 * field_at(scratch.words, lists.signs + i, 1));
  const std::uint32_t* gaps = scratch.quotients + head.all;
  constexpr std::uint64_t kMaxMagnitude =
      (std::uint64_t{1} << (L::kWidth - 1)) - 1;  // of a magnitude - 1
  std::uint64_t index = 0, bit = lists.big_low_parts;
  for (unsigned i = 0; i < head.big_steps; ++i, ++index, bit += head.big_gap_width) {
    index += (std::uint64_t{gaps[i]} << head.big_gap_width) +
             field_at(scratch.words, bit, head.big_gap_width);
    const std::uint64_t quotient = gaps[head.big_steps + i];
    std::uint64_t m;  // the magnitude - 1
    if (head.step_width == kDeltaGamma) {
      if (quotient > L::kWidth - 2) return false;
      const auto width = static_cast<unsigned>(quotient);
      m = std::uint64_t{1} << width | lists.rest(width);
    } else {
      if (quotient > kMaxMagnitude >> head.step_width) return false;
      m = (quotient << head.step_width | lists.rest(head.step_width)) + 1;
    }
    if (index >= head.all || m > kMaxMagnitude) return false;
    steps[index] = static_cast<Bits>(std::uint64_t{steps[index]} * (m + 1));
  }
  return lists.ends();
}

/// Returns the change of the checksum.
template <typename Bits>
std::uint64_t sum_of_changes(const DeltaScratch& scratch, unsigned count, std::uint64_t first) {
  constexpr std::size_t kWords = sizeof(Bits) < 4 ? 1 : sizeof(Bits) / 4;  // of a value
  constexpr std::size_t kGroups = kWords;                                  // of a block
  const auto* old_values = reinterpret_cast<const Bits*>(scratch.old_values);
  const auto* new_values = reinterpret_cast<const Bits*>(scratch.new_values);
  const std::uint64_t first_word = first * sizeof(Bits) / 4, group = first_word / kChecksumGroup;
  ProductSum sums[kGroups][kChecksumColumns];
  const auto add = [&](std::uint64_t word, std::int64_t change) {
    sums[word / kChecksumGroup - group][word % kChecksumColumns].add(
        change * kChecksumNumbers.weight[checksum_row(word)]);
  };
  for (unsigned i = 0; i < count; ++i) {
    const std::uint64_t byte = (first + scratch.places[i]) * sizeof(Bits);
    if constexpr (sizeof(Bits) < 4) {
      // The upper part of a word is signed.
      const auto shift = static_cast<unsigned>(byte % 4 * 8);
      const auto part = [&](Bits bits) {
        return std::int64_t{static_cast<std::int32_t>(std::uint32_t{bits} << shift)};
      };
      add(byte / 4, part(new_values[i]) - part(old_values[i]));
    } else {
      for (std::size_t word = 0; word < kWords; ++word) {
        const auto part = [&](Bits bits) {
          return std::int64_t{static_cast<std::int32_t>(std::uint64_t{bits} >> 32 * word)};
        };
        add(byte / 4 + word, part(new_values[i]) - part(old_values[i]));
      }
    }
  }
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < kGroups; ++i) {
    std::uint64_t group_sum = 0;
    for (std::size_t column = 0; column < kChecksumColumns; ++column)
      group_sum =
          add_checksums(group_sum, multiply_checksums(checksum_remainder(sums[i][column].reduced()),
                                                      kChecksumNumbers.power[0][column]));
    all = add_checksums(
        all,
        multiply_checksums(group_sum, kChecksumNumbers.power_of((group + i) * kChecksumColumns)));
  }
  return all;
}

template <class L>
DeltaChanges decode_block(const DeltaBlock& block, const std::byte* words, std::size_t size,
                          DeltaScratch& scratch) {
  using Bits = typename L::Bits;
  ListReader lists(words, size, scratch);
  if (const char* fault = lists.read_head(block.classes.count, block.count)) return {fault};
  const auto* base = reinterpret_cast<const Bits*>(block.base);
  find_classes<L>(base, block.count, block.classes, scratch);
  if (block.classes.count != 1) find_words(block.count, block.classes, scratch);
  if (!read_places<L>(lists, block, scratch)) return {"a place is beyond its class"};
  if (!read_steps<L>(lists, scratch)) return {"the steps of a block are damaged"};
  const unsigned count = lists.head.all;
  const auto* HWY_RESTRICT steps = reinterpret_cast<const Bits*>(scratch.steps);
  auto* HWY_RESTRICT old_values = reinterpret_cast<Bits*>(scratch.old_values);
  auto* HWY_RESTRICT new_values = reinterpret_cast<Bits*>(scratch.new_values);
  for (unsigned i = 0; i < count; ++i) old_values[i] = base[scratch.places[i]];
  for (unsigned i = 0; i < count; ++i) new_values[i] = L::moved(old_values[i], steps[i]);
  return {nullptr, count, sum_of_changes<Bits>(scratch, count, block.first)};
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_DELTA_BLOCKS_INL_H_
