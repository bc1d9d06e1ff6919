// Kernels of weight deltas. A thread block decodes a block of the delta at a time. Codes are found
// by their number: prefix sums over the ones of a plane, then a search.
#pragma once

#include "kernels/delta/formulas.h"
#include "kernels/delta/sums.cuh"
#include "kernels/delta/words.cuh"
#include "kernels/device/queue.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

template <typename Bits>
struct DeltaDecodeKernel : DeltaTensorKernel<Bits> {
  using Base = DeltaTensorKernel<Bits>;
  using Sums = DeltaThreadSums<Bits>;
  using Base::kBlock, Base::kBlockWords, Base::kThreads, Base::tensor;
  static constexpr bool kScans = true;
  static constexpr unsigned kWidth = 8 * sizeof(Bits);
  static constexpr unsigned kMaskWords = kBlock / 64;
  static constexpr unsigned kRun = 4;  // words of the plane per number in `ones`
  static constexpr unsigned kRuns = kBlockWords / kRun;
  static constexpr unsigned kMaxOnes = 65'535;  // more than a block has codes
  static constexpr std::uint64_t kMaxMagnitude = (std::uint64_t{1} << (kWidth - 1)) - 1;

  /// The head of a block.
  struct Head {
    std::uint32_t changed[kDeltaClasses], widths[kDeltaClasses], low_parts[kDeltaClasses];  // bits
    std::uint32_t all, big_steps, big_gap_width, step_width;
    std::uint32_t big_low_parts, signs, plane;  // bits, and a word
    std::uint64_t record;                       // the first value in the records
    DeltaFault fault;
  };
  struct Shared {
    std::uint64_t masks[kDeltaClasses][kMaskWords];  // the values of each class
    std::uint16_t before[kDeltaClasses][kMaskWords + 1];
    std::uint16_t ones[kRuns];  // codes before each run of the plane
    Head head;
  };
  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    Sums sums;
    for (unsigned i = block.rank(); i < this->blocks; i += block.blocks()) {
      decode(block, i, shared, sums);
      block.sync();
    }
    sums.finish(block.warp(), *tensor.sums);
  }

 private:
  /// Returns the first word of a block of the delta.
  template <class Block>
  TERSOR_DEVICE std::uint64_t first_word(const Block& block, unsigned i) const {
    constexpr unsigned kBlocksPerStart = 64;  // blocks
    const unsigned start = i / kBlocksPerStart, begin = start * kBlocksPerStart,
                   j = begin + block.thread_rank();
    std::uint64_t words = 0, total;
    if (j < i) {
      words = load(tensor.sizes + j);
      if (words == kDeltaPlain) words = kBlockWords;
    }
    block.exclusive_sum(words, total);
    return (start == 0 ? 0 : load(tensor.starts + start - 1)) + total;
  }

  template <class Block>
  TERSOR_DEVICE void decode(const Block& block, unsigned i, Shared& shared, Sums& sums) const {
    const unsigned thread = block.thread_rank();
    if (tensor.reads_base)
      sums.add_base(thread, kThreads, i, this->values_at(i), this->values_of(i));
    const unsigned size = load(tensor.sizes + i);
    if (size == 0) {
      if (thread == 0) store(tensor.records + i, DeltaRecord{});
      return;
    }
    const std::uint64_t first = first_word(block, i);
    if (size == kDeltaPlain) {
      add_plain(thread, i, tensor.blocks + first, sums);
      if (thread == 0) store(tensor.records + i, DeltaRecord{first, kDeltaPlainRecord, 0});
      return;
    }
    const DeltaWords words{tensor.blocks + first, size};
    if (thread == 0) read_head(words, this->values_of(i), shared.head);
    if (tensor.classes.count != 1) find_classes(block, i, shared);
    block.sync();
    const DeltaFault fault =
        shared.head.fault != DeltaFault::kNone ? shared.head.fault : read(block, words, i, shared);
    if (fault == DeltaFault::kNone) {
      add_changes(thread, i, shared.head, sums);
    } else if (thread == 0) {
      atomicMax(reinterpret_cast<unsigned*>(&tensor.sums->fault), static_cast<unsigned>(fault));
    }
    if (thread == 0)
      store(tensor.records + i, fault == DeltaFault::kNone
                                    ? DeltaRecord{shared.head.record, shared.head.all, 0}
                                    : DeltaRecord{});
  }

  TERSOR_DEVICE void add_plain(unsigned thread, unsigned i, const std::uint32_t* words,
                               Sums& sums) const {
    const Bits* values = this->values_at(i);
    typename Sums::BlockChanges changes(i);
    unsigned changed = 0;
    for (unsigned place = thread; place < this->values_of(i); place += kThreads) {
      const Bits old = load(values + place), now = load_plain<Bits>(words, place);
      if (old == now) continue;
      changes.add(place, old, now);
      ++changed;
    }
    sums.end(changes);
    sums.add_changed(changed);
  }

  /// Reads the head of a block with `count` values, and reserves records.
  TERSOR_DEVICE void read_head(const DeltaWords& words, unsigned count, Head& head) const {
    unsigned bit = 0;
    const auto take = [&](unsigned width) {
      bit += width;
      return words.field(bit - width, width);
    };
    bool is_valid = words.size < kBlockWords;
    head.all = 0;
    TERSOR_KEEP_LOOP
    for (unsigned c = 0; c < tensor.classes.count; ++c) {
      head.changed[c] = take(kDeltaCountBits);
      head.widths[c] = take(kDeltaWidthBits);
      head.all += head.changed[c];
      is_valid = is_valid && head.widths[c] <= kDeltaMaxWidth;
    }
    head.big_steps = take(kDeltaCountBits);
    head.big_gap_width = take(kDeltaWidthBits);
    head.step_width = take(kDeltaStepBits);
    is_valid = is_valid && head.all != 0 && head.all <= count && head.big_steps <= head.all &&
               head.big_gap_width <= kDeltaMaxWidth;
    TERSOR_KEEP_LOOP
    for (unsigned c = 0; c < tensor.classes.count; ++c) {
      head.low_parts[c] = bit;
      bit += head.changed[c] * head.widths[c];
    }
    head.big_low_parts = bit;
    head.signs = bit + head.big_steps * head.big_gap_width;
    bit = head.signs + head.all;
    is_valid = is_valid && words.pads(bit);
    head.plane = (bit + 31) / 32;
    head.fault = is_valid ? DeltaFault::kNone : DeltaFault::kHead;
    head.record = 0;
    if (!is_valid) return;
    head.record = atomic_add(&tensor.sums->recorded, std::uint64_t{head.all});
    if (head.record + head.all > tensor.max_recorded) head.fault = DeltaFault::kCounts;
  }

  /// Finds the values of each class: each warp takes 64 values at a time.
  template <class Block>
  TERSOR_DEVICE void find_classes(const Block& block, unsigned i, Shared& shared) const {
    const unsigned count = this->values_of(i), words = (count + 63) / 64;
    const unsigned lane = block.thread_rank() % kWarpThreads;
    const Bits* values = this->values_at(i);
    for (unsigned word = block.warp_rank(); word < words; word += block.warps()) {
      unsigned classes[2];
      TERSOR_UNROLL
      for (unsigned half = 0; half < 2; ++half) {
        const unsigned place = 64 * word + 32 * half + lane;
        classes[half] = place < count ? class_of(load(values + place)) : kDeltaClasses;
      }
      TERSOR_KEEP_LOOP
      for (unsigned c = 0; c < tensor.classes.count; ++c) {
        const std::uint64_t low = block.warp().ballot(classes[0] == c);
        const std::uint64_t high = block.warp().ballot(classes[1] == c);
        if (lane == 0) shared.masks[c][word] = low | high << 32;
      }
    }
    block.sync();
    TERSOR_KEEP_LOOP
    for (unsigned c = 0; c < tensor.classes.count; ++c) {
      static_assert(kMaskWords == kThreads);
      const unsigned word = block.thread_rank();
      std::uint64_t total;
      const std::uint64_t ones =
          word < words ? static_cast<std::uint64_t>(__popcll(shared.masks[c][word])) : 0;
      const std::uint64_t before = block.exclusive_sum(ones, total);
      if (word < words) shared.before[c][word] = static_cast<std::uint16_t>(before);
      if (word == 0) shared.before[c][words] = static_cast<std::uint16_t>(total);
    }
  }

  TERSOR_DEVICE unsigned class_of(Bits bits) const {
    const unsigned exponent_bits = kWidth - 1 - this->mantissa_bits;
    const unsigned exponent =
        static_cast<unsigned>(bits >> this->mantissa_bits) & ((1u << exponent_bits) - 1);
    const DeltaClasses& classes = tensor.classes;
    return exponent < classes.first ? 0 : min(exponent - classes.first + 1, classes.count - 1);
  }
  TERSOR_DEVICE Bits flip(Bits bits) const { return this->is_float ? delta_flip(bits) : bits; }

  /// Finds the codes of the plane. Returns false if the plane has fewer than `codes`.
  template <class Block>
  TERSOR_DEVICE bool count_ones(const Block& block, const DeltaWords& words, unsigned codes,
                                Shared& shared, unsigned& runs) const {
    const unsigned plane = shared.head.plane;
    std::uint64_t done = 0;
    for (runs = 0; runs * kRun < words.size - plane && done < codes; runs += kThreads) {
      const unsigned run = runs + block.thread_rank();
      std::uint64_t ones = 0, total;
      TERSOR_UNROLL
      for (unsigned k = 0; k < kRun; ++k) ones += count_bits(words.word(plane + run * kRun + k));
      const std::uint64_t before = done + block.exclusive_sum(ones, total);
      if (run < kRuns)
        shared.ones[run] = static_cast<std::uint16_t>(min(before, std::uint64_t{kMaxOnes}));
      done += total;
    }
    runs = min(runs, kRuns);
    block.sync();
    return done >= codes;
  }

  /// Returns the bit of the plane at which a code ends.
  TERSOR_DEVICE static unsigned end_of(const DeltaWords& words, const Shared& shared, unsigned runs,
                                       unsigned code) {
    const unsigned run = find_last(shared.ones, runs, code);
    unsigned rank = code - shared.ones[run], word = run * kRun;
    std::uint32_t bits = words.word(shared.head.plane + word);
    TERSOR_KEEP_LOOP
    for (unsigned k = 1; k < kRun; ++k) {
      const unsigned ones = count_bits(bits);
      if (rank < ones) break;
      rank -= ones;
      bits = words.word(shared.head.plane + ++word);
    }
    return 32 * word + nth_one(bits, rank);
  }

  /// Returns the quotient of this thread's code, which follows the code of the thread before. All
  /// threads of a warp call.
  template <class Warp>
  TERSOR_DEVICE static unsigned quotient(const Warp& warp, const DeltaWords& words,
                                         const Shared& shared, unsigned runs, unsigned code,
                                         bool exists) {
    const unsigned end = exists ? end_of(words, shared, runs, code) : 0;
    unsigned before = __shfl_up_sync(~0u, end, 1);
    if (warp.thread_rank() == 0)
      before = exists && code != 0 ? end_of(words, shared, runs, code - 1) : ~0u;
    else if (code == 0)
      before = ~0u;
    return end - before - 1;
  }

  /// Writes the places and the steps of a block to the records.
  template <class Block>
  TERSOR_DEVICE DeltaFault read(const Block& block, const DeltaWords& words, unsigned i,
                                Shared& shared) const {
    const Head& head = shared.head;
    const unsigned thread = block.thread_rank(), codes = head.all + 2 * head.big_steps;
    unsigned runs;
    if (!count_ones(block, words, codes, shared, runs)) return DeltaFault::kCodes;
    const unsigned last = end_of(words, shared, runs, codes - 1) + 1;
    if (!words.pads(32 * head.plane + last)) return DeltaFault::kCodes;
    Bits* const steps = reinterpret_cast<Bits*>(tensor.record_values) + head.record;
    std::uint16_t* const places = tensor.record_places + head.record;
    bool fails = false;
    unsigned first = 0;  // change of the class
    TERSOR_KEEP_LOOP
    for (unsigned c = 0; c < tensor.classes.count; ++c) {
      const unsigned count = head.changed[c], width = head.widths[c];
      const bool classes = tensor.classes.count != 1;
      const unsigned valid = this->values_of(i);
      const unsigned values = classes ? shared.before[c][(valid + 63) / 64] : valid;
      std::uint64_t next = 0;  // rank
      for (unsigned begin = 0; begin < count; begin += kThreads) {
        const unsigned j = begin + thread, index = first + j;
        const bool exists = j < count;
        const std::uint64_t high =
            quotient(block.warp(), words, shared, runs, exists ? index : 0, exists);
        const std::uint64_t gap = high << width | words.field(head.low_parts[c] + j * width, width);
        std::uint64_t total;
        const std::uint64_t rank =
            next + block.exclusive_sum(exists ? gap + 1 : 0, total) + (exists ? gap : 0);
        next += total;
        if (!exists) continue;
        fails = fails || rank >= values;
        if (fails) continue;
        auto place = static_cast<unsigned>(rank);
        if (classes) {
          const unsigned word = find_last(shared.before[c], (valid + 63) / 64, place);
          const std::uint64_t mask = shared.masks[c][word];
          unsigned left = place - shared.before[c][word];
          const unsigned lower = count_bits(static_cast<std::uint32_t>(mask));
          place = 64 * word + (left < lower ? nth_one(static_cast<std::uint32_t>(mask), left)
                                            : 32 + nth_one(static_cast<std::uint32_t>(mask >> 32),
                                                           left - lower));
        }
        store(places + index, static_cast<std::uint16_t>(place));
        const bool is_negative = words.field(head.signs + index, 1) != 0;
        store(steps + index, static_cast<Bits>(is_negative ? ~Bits{0} : Bits{1}));
      }
      first += count;
    }
    if (block.any(fails)) return DeltaFault::kPlaces;
    return read_big_steps(block, words, last, runs, steps, shared);
  }

  /// Multiplies the steps by the magnitudes above 1. `last` is the bit after the last code.
  template <class Block>
  TERSOR_DEVICE DeltaFault read_big_steps(const Block& block, const DeltaWords& words,
                                          unsigned last, unsigned runs, Bits* steps,
                                          const Shared& shared) const {
    const Head& head = shared.head;
    const bool gamma = head.step_width == kDeltaGamma;
    const std::uint64_t rest = (head.plane + (last + 31) / 32) * std::uint64_t{32};
    std::uint64_t next_index = 0, next_bit = rest;
    bool fails = false;
    for (unsigned begin = 0; begin < head.big_steps; begin += kThreads) {
      const unsigned j = begin + block.thread_rank();
      const bool exists = j < head.big_steps;
      const std::uint64_t high =
          quotient(block.warp(), words, shared, runs, exists ? head.all + j : 0, exists);
      const unsigned code = quotient(block.warp(), words, shared, runs,
                                     exists ? head.all + head.big_steps + j : 0, exists);
      const std::uint64_t gap =
          high << head.big_gap_width |
          words.field(head.big_low_parts + j * head.big_gap_width, head.big_gap_width);
      const bool fits = gamma ? code <= kWidth - 2 : code <= kMaxMagnitude >> head.step_width;
      const unsigned width = !exists ? 0 : !gamma ? head.step_width : fits ? code : 0;
      std::uint64_t total;
      const std::uint64_t index =
          next_index + block.exclusive_sum(exists ? gap + 1 : 0, total) + (exists ? gap : 0);
      next_index += total;
      const std::uint64_t bit = next_bit + block.exclusive_sum(width, total);
      next_bit += total;
      if (!exists) continue;
      fails = fails || !fits || index >= head.all || bit + width > 32 * std::uint64_t{words.size};
      if (fails) continue;
      const std::uint64_t low = words.wide_field(static_cast<unsigned>(bit), width);
      const std::uint64_t magnitude =
          gamma ? std::uint64_t{1} << width | low : (std::uint64_t{code} << width | low) + 1;
      fails = magnitude > kMaxMagnitude;  // of the magnitude - 1
      if (!fails) store(steps + index, static_cast<Bits>(load(steps + index) * (magnitude + 1)));
    }
    const bool ends =
        (next_bit + 31) / 32 == words.size && words.pads(static_cast<unsigned>(next_bit));
    return block.any(fails || !ends) ? DeltaFault::kSteps : DeltaFault::kNone;
  }

  /// Turns the steps in the records into new values.
  TERSOR_DEVICE void add_changes(unsigned thread, unsigned i, const Head& head, Sums& sums) const {
    const Bits* values = this->values_at(i);
    Bits* const steps = reinterpret_cast<Bits*>(tensor.record_values) + head.record;
    const std::uint16_t* places = tensor.record_places + head.record;
    typename Sums::BlockChanges changes(i);
    for (unsigned j = thread; j < head.all; j += kThreads) {
      const unsigned place = load(places + j);
      const Bits old = load(values + place);
      const Bits now = flip(static_cast<Bits>(flip(old) + load(steps + j)));
      changes.add(place, old, now);
      store(steps + j, now);
    }
    sums.end(changes);
    if (thread == 0) sums.add_changed(head.all);
  }
};

template <typename Bits>
struct DeltaWriteKernel : DeltaTensorKernel<Bits> {
  using Base = DeltaTensorKernel<Bits>;
  using Base::kThreads, Base::tensor;
  static constexpr bool kScans = false;
  struct Shared {};
  bool restores;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    for (unsigned i = block.rank(); i < this->blocks; i += block.blocks()) {
      const DeltaRecord record = load(tensor.records + i);
      Bits* const values = this->values_at(i);
      const bool whole = record.count == kDeltaPlainRecord;
      const unsigned count = whole ? this->values_of(i) : record.count;
      std::uint32_t* const words = tensor.blocks + record.first;
      Bits* const new_values = reinterpret_cast<Bits*>(tensor.record_values) + record.first;
      for (unsigned j = block.thread_rank(); j < count; j += kThreads) {
        const unsigned place = whole ? j : load(tensor.record_places + record.first + j);
        const Bits now = whole ? load_plain<Bits>(words, j) : load(new_values + j);
        const Bits old = load(values + place);
        store(values + place, now);
        if (restores) continue;
        if (whole)
          store_plain(words, j, old);
        else
          store(new_values + j, old);
      }
    }
  }
};

}  // namespace tersor::kernels
