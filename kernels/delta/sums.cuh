// The sums of a delta's tensor on a device: the checksum of the base, the change of the checksum,
// and the number of changed values.
#pragma once

#include "kernels/delta/device.h"
#include "kernels/device/checksum.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// A thread's sums over blocks of a tensor. Checksums are partially reduced.
template <typename Bits>
class DeltaThreadSums {
 public:
  static constexpr unsigned kBlockWords = kDeltaBlock * sizeof(Bits) / 4;  // of 32 bits
  static constexpr unsigned kGroups = sizeof(Bits) == 8 ? 2 : 1;           // of a block

  /// The change of a block's checksum.
  class BlockChanges {
   public:
    TERSOR_DEVICE explicit BlockChanges(unsigned block) : block_(block) {}

    TERSOR_DEVICE void add(unsigned place, Bits old, Bits now) {
      const unsigned byte = place * unsigned{sizeof(Bits)};
      TERSOR_UNROLL
      for (unsigned k = 0; k < kGroups; ++k) {  // the words of a value
        // The upper part of a word is signed.
        const auto part = [&](Bits bits) {
          const auto word = static_cast<std::uint32_t>(bits >> (kGroups == 2 ? 32 * k : 0));
          return std::int64_t{static_cast<std::int32_t>(word << byte % 4 * 8)};
        };
        const unsigned in_block = byte / 4 + k;
        const std::uint64_t word = block_ * std::uint64_t{kBlockWords} + in_block;
        const std::int64_t product =
            (part(now) - part(old)) * load(kDeviceChecksumNumbers.weight + checksum_row(word));
        const std::uint64_t change =
            multiply_number(checksum_of(fold_checksum(product)),
                            load(kDeviceChecksumNumbers.power[0] + word % kChecksumColumns));
        const bool is_first = kGroups == 1 || in_block < kChecksumGroup;
        first_ = fold_number(first_ + (is_first ? change : 0));
        if constexpr (kGroups == 2) second_ = fold_number(second_ + (is_first ? 0 : change));
      }
    }

   private:
    friend class DeltaThreadSums;
    unsigned block_;
    std::uint64_t first_ = 0, second_ = 0;  // of the groups
  };

  TERSOR_DEVICE void end(const BlockChanges& block) {
    change_ = fold_number(change_ + multiply_number(block.first_, group_power(block.block_, 0)));
    if constexpr (kGroups == 2)
      change_ = fold_number(change_ + multiply_number(block.second_, group_power(block.block_, 1)));
  }

  TERSOR_DEVICE void add_changed(unsigned values) { changed_ += values; }

  /// Adds this thread's part of the checksum of a block with `count` values. `threads` is a
  /// multiple of 16, so a thread has the same column in all rows.
  TERSOR_DEVICE void add_base(unsigned thread, unsigned threads, unsigned block, const Bits* values,
                              unsigned count) {
    const unsigned words = (count * unsigned{sizeof(Bits)} + 3) / 4;
    TERSOR_UNROLL
    for (unsigned k = 0; k < kGroups; ++k) {
      ProductSum column;
      const unsigned begin = k * unsigned{kChecksumGroup};
      const unsigned end = kGroups == 1 ? words : min(words, begin + unsigned{kChecksumGroup});
      for (unsigned word = begin + thread; word < end; word += threads) {
        const std::uint64_t row = checksum_row(block * std::uint64_t{kBlockWords} + word);
        column.add(std::int64_t{static_cast<std::int32_t>(word_of(values, count, word))} *
                   load(kDeviceChecksumNumbers.weight + row));
      }
      const std::uint64_t sum = multiply_number(
          column.reduced(), load(kDeviceChecksumNumbers.power[0] + thread % kChecksumColumns));
      base_ = fold_number(base_ + multiply_number(fold_number(sum), group_power(block, k)));
    }
  }

  /// Adds the sums of a warp's threads to the tensor's sums.
  template <class Warp>
  TERSOR_DEVICE void finish(const Warp& warp, DeltaSums& sums) const {
    static_assert(sizeof(ChecksumParts) == 2 * sizeof(std::uint64_t));
    const std::uint64_t base = sum_of_warp(warp, base_), change = sum_of_warp(warp, change_);
    const std::uint64_t changed = warp.sum(changed_);
    if (warp.thread_rank() != 0) return;
    reinterpret_cast<ChecksumParts*>(&sums.base_low)->add(base);
    reinterpret_cast<ChecksumParts*>(&sums.change_low)->add(change);
    atomic_add(&sums.changed, changed);
  }

 private:
  /// Returns base^(the first column of group `k` of a block).
  TERSOR_DEVICE static std::uint64_t group_power(unsigned block, unsigned k) {
    constexpr unsigned kGroupsPerStep = ChecksumNumbers::kPowers / kChecksumColumns;
    const std::uint64_t group = block * std::uint64_t{kBlockWords} / kChecksumGroup + k;
    const std::uint64_t power =
        load(kDeviceChecksumNumbers.power[0] + group % kGroupsPerStep * kChecksumColumns);
    return checksum_remainder(times_far_powers(power, group / kGroupsPerStep));
  }

  /// Returns a 32-bit word of a block with `count` values, padded with zeros.
  TERSOR_DEVICE static std::uint32_t word_of(const Bits* values, unsigned count, unsigned word) {
    if constexpr (sizeof(Bits) == 8) {
      return static_cast<std::uint32_t>(load(values + word / 2) >> word % 2 * 32);
    } else {
      constexpr unsigned kValues = 4 / sizeof(Bits);
      const auto* words = reinterpret_cast<const std::uint32_t*>(values);
      const bool is_aligned = reinterpret_cast<std::uintptr_t>(values) % sizeof *words == 0;
      if (is_aligned && (word + 1) * kValues <= count) return load(words + word);
      std::uint32_t bits = 0;
      TERSOR_UNROLL
      for (unsigned k = 0; k < kValues; ++k) {
        const unsigned i = word * kValues + k;
        if (i < count) bits |= std::uint32_t{load(values + i)} << k * 8 * sizeof(Bits) % 32;
      }
      return bits;
    }
  }

  std::uint64_t base_ = 0, change_ = 0, changed_ = 0;
};

}  // namespace tersor::kernels
