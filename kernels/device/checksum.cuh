// Checksums on a device: constants, sums over pieces of a frame, and sums shared by many threads.
#pragma once

#include "kernels/device/memory.cuh"
#include "kernels/scalar/checksum.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

static __device__ const ChecksumNumbers kDeviceChecksumNumbers = make_checksum_numbers();

/// Kernels add partially reduced numbers below 2^61 + 8 with the right remainder, because a full
/// reduction per step would double the cost of ending a sum.
TERSOR_DEVICE std::uint64_t fold_number(std::uint64_t number) {
  return (number & kChecksumPrime) + (number >> kChecksumBits);
}
/// Returns a · b, partially reduced: below 2^61 + a. The factor b must be a remainder.
TERSOR_DEVICE std::uint64_t multiply_number(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return (static_cast<std::uint64_t>(product) & kChecksumPrime) +
         static_cast<std::uint64_t>(product >> kChecksumBits);
}

/// A checksum for atomic adds: 32-bit halves in 64-bit sums, initially zero.
struct ChecksumParts {
  std::uint64_t low;
  std::uint64_t high;

  /// Adds the sum of this thread.
  TERSOR_DEVICE void add(std::uint64_t sum) {
    atomic_add(&low, sum & 0xffffffffu);
    atomic_add(&high, sum >> 32);
  }

  /// Returns the total. Call after all threads added.
  TERSOR_DEVICE std::uint64_t value() const {
    const std::uint64_t upper = checksum_remainder(load_fresh(&high));
    return add_checksums(multiply_checksums(upper, std::uint64_t{1} << 32),
                         checksum_remainder(load_fresh(&low)));
  }
};

/// Returns the part of a word in a frame's first row, or of a difference of two words.
TERSOR_DEVICE std::uint64_t checksum_of_word(std::int64_t word, unsigned column) {
  const ChecksumNumbers& numbers = kDeviceChecksumNumbers;
  return multiply_checksums(checksum_of(fold_checksum(word * numbers.weight[0])),
                            numbers.power[0][column]);
}

constexpr std::size_t kRowBytes = kChecksumColumns * sizeof(std::uint32_t);
constexpr std::size_t kGroupBytes = kChecksumRows * kRowBytes;

/// How a warp sums a group: 256 bytes at a time, two columns of one row per thread. Wider loads
/// would be fewer, but more columns per thread would cost more at the end of each piece.
constexpr unsigned kWarpBytes = 32 * sizeof(Words64);
constexpr unsigned kQuadBytes = kChecksumProducts * kWarpBytes;  // four rows per thread
constexpr unsigned kQuadRows = kQuadBytes / kRowBytes;

/// The weights of four rows of a thread, kStride rows apart, fetched by one load.
struct ThreadWeights {
  struct alignas(16) Quad {
    std::int32_t weight[kChecksumProducts];
  };
  Quad of[kChecksumRows] = {};  // indexed by the first row
};
template <unsigned kStride>
constexpr ThreadWeights make_thread_weights() {
  const ChecksumNumbers numbers = make_checksum_numbers();
  ThreadWeights weights;
  for (std::size_t row = 0; row < kChecksumRows; ++row) {
    for (std::size_t k = 0; k < kChecksumProducts; ++k)
      weights.of[row].weight[k] = numbers.weight[(row + k * kStride) % kChecksumRows];
  }
  return weights;
}
template <unsigned kStride>
static __device__ const ThreadWeights kDeviceThreadWeights = make_thread_weights<kStride>();

/// Returns sum · base^(steps · kPowers).
TERSOR_DEVICE std::uint64_t times_far_powers(std::uint64_t sum, std::uint64_t steps) {
  TERSOR_KEEP_LOOP
  for (const auto* step = kDeviceChecksumNumbers.power + 1; steps != 0; ++step) {
    sum = fold_number(multiply_number(sum, load(*step + steps % ChecksumNumbers::kPowers)));
    steps /= ChecksumNumbers::kPowers;
  }
  return sum;
}

/// A thread's sums of its two columns of a group.
class ColumnPair {
 public:
  /// Adds four rows. The number of existing bytes from the first row's address on is `left`.
  template <bool kFull>
  TERSOR_DEVICE void add(const std::byte* from, const ThreadWeights::Quad* weights, unsigned left) {
    const auto quad = load(weights);
    Words64 words[kChecksumProducts] = {};
    TERSOR_UNROLL
    for (unsigned k = 0; k < kChecksumProducts; ++k) {
      if (kFull || k * kWarpBytes < left)
        words[k] = load(reinterpret_cast<const Words64*>(from + k * kWarpBytes));
      // Without this, nvcc would use 64-bit multiplications where the load may be skipped.
      if (!kFull) asm("" : "+r"(words[k].word[0]), "+r"(words[k].word[1]));
    }
    TERSOR_UNROLL
    for (unsigned i = 0; i < 2; ++i) {
      std::int64_t products = 0;
      TERSOR_UNROLL
      for (unsigned k = 0; k < kChecksumProducts; ++k)
        products += std::int64_t{static_cast<std::int32_t>(words[k].word[i])} * quad.weight[k];
      column_[i].add(products);
    }
  }

  /// Returns the sum of all added rows of at most a group. `column` is the index of the first
  /// column.
  TERSOR_DEVICE std::uint64_t value(std::uint64_t column) const {
    constexpr std::size_t kPowers = ChecksumNumbers::kPowers;
    const std::uint64_t* powers = kDeviceChecksumNumbers.power[0] + column % kPowers;
    return times_far_powers(fold_number(multiply_number(column_[0].reduced(), load(powers)) +
                                        multiply_number(column_[1].reduced(), load(powers + 1))),
                            column / kPowers);
  }

 private:
  ProductSum column_[2];
};

/// Returns this thread's part of the sum over a group's bytes [begin, end), which are multiples of
/// 8. This warp or an earlier launch wrote the bytes. `kQuads` times four rows are in flight at a
/// time. The counters are 32-bit, because few registers are left besides the words.
template <unsigned kQuads = 2>
TERSOR_DEVICE std::uint64_t sum_group(const std::byte* frame, std::uint32_t group, unsigned begin,
                                      unsigned end, unsigned thread) {
  // A thread has the same columns wherever the warp begins.
  const unsigned at = begin + (thread * unsigned{sizeof(Words64)} - begin) % kWarpBytes;
  const std::byte* from = frame + group * std::uint64_t{kGroupBytes} + at;
  const auto* weights = kDeviceThreadWeights<kWarpBytes / kRowBytes>.of + at / kRowBytes;
  unsigned whole = (end - begin) / (kQuads * kQuadBytes);
  int left = static_cast<int>(end - at - whole * kQuads * kQuadBytes);
  ColumnPair columns;
  TERSOR_KEEP_LOOP
  for (; whole != 0; --whole) {
    TERSOR_UNROLL
    for (unsigned i = 0; i < kQuads; ++i)
      columns.add<true>(from + i * kQuadBytes, weights + i * kQuadRows, kQuadBytes);
    from += kQuads * kQuadBytes;
    weights += kQuads * kQuadRows;
  }
  TERSOR_KEEP_LOOP
  for (; left > 0; left -= kQuadBytes) {
    columns.add<false>(from, weights, static_cast<unsigned>(left));
    from += kQuadBytes;
    weights += kQuadRows;
  }
  return columns.value(group * std::uint64_t{kChecksumColumns} + thread * 2 % kChecksumColumns);
}

/// The place of a thread's words in a tile of a frame. Word n * kColumns + k of the thread is in
/// column k, kGap words after column k - 1. Successive words of a column are kStride rows apart.
template <unsigned kColumnsOf, unsigned kWordsOf, unsigned kGapOf, unsigned kStrideOf>
struct ThreadWordLayout {
  static constexpr unsigned kColumns = kColumnsOf, kWords = kWordsOf;  // words per column
  static constexpr unsigned kGap = kGapOf, kStride = kStrideOf;
};

/// A thread's sums of words that the thread holds in registers. The sums end when a tile is in
/// another group of rows than the tile before.
template <class WordLayout>
class ThreadColumns {
 public:
  using Words = std::uint32_t[WordLayout::kColumns * WordLayout::kWords];

  /// True if a tile of `words` words at word `first` of a frame is within one group. Only such
  /// tiles can be added. `first` is a multiple of 4.
  TERSOR_DEVICE static bool holds(std::uint64_t first, unsigned words) {
    return static_cast<unsigned>(first % kChecksumGroup) + words <= kChecksumGroup;
  }

  /// Adds this thread's words of the tile at word `first` of the frame. The thread's first word is
  /// word `own` of the tile. Calls end(sum) with the sum of an earlier group.
  template <class End>
  TERSOR_DEVICE void add(std::uint64_t first, unsigned own, const Words& words, const End& end) {
    const auto row = static_cast<std::uint32_t>(first / kChecksumColumns);
    const std::uint32_t key =
        row / kChecksumRows * kChecksumColumns + static_cast<unsigned>(first % kChecksumColumns);
    if (key != key_) {
      if (key_ != kNone) end(take(own));
      key_ = key;
    }
    const unsigned at = key % kChecksumColumns + own, column = at % kChecksumColumns;
    const auto* weights = kDeviceThreadWeights<WordLayout::kStride>.of +
                          (row % kChecksumRows + at / kChecksumColumns);
    TERSOR_UNROLL
    for (unsigned k = 0; k < WordLayout::kColumns; ++k) {
      const bool next = column + k * WordLayout::kGap >= kChecksumColumns;
      TERSOR_UNROLL
      for (unsigned n = 0; n < WordLayout::kWords; n += kChecksumProducts)
        column_[k].add(products_of(words, k, n, weights, next));
    }
  }

  /// Returns the sum of all words added since the last call, and starts again.
  TERSOR_DEVICE std::uint64_t take(unsigned own) {
    if (key_ == kNone) return 0;
    const std::uint32_t group = key_ / kChecksumColumns, first = key_ % kChecksumColumns + own;
    constexpr unsigned kGroups = ChecksumNumbers::kPowers / kChecksumColumns;
    const auto* powers = kDeviceChecksumNumbers.power[0] + group % kGroups * kChecksumColumns;
    std::uint64_t sum = 0;
    TERSOR_UNROLL
    for (unsigned k = 0; k < WordLayout::kColumns; ++k) {
      const unsigned column = (first + k * WordLayout::kGap) % kChecksumColumns;
      sum = fold_number(sum + multiply_number(column_[k].reduced(), load(powers + column)));
      column_[k] = {};
    }
    key_ = kNone;
    return times_far_powers(sum, group / kGroups);
  }

 private:
  static constexpr std::uint32_t kNone = ~0u;

  /// Returns the sum of up to four words of column k, times the weights of their rows. If `next` is
  /// true, the column's words are one row later.
  TERSOR_DEVICE static std::int64_t products_of(const Words& words, unsigned k, unsigned n,
                                                const ThreadWeights::Quad* weights, bool next) {
    const auto product = [&](unsigned i, std::int32_t weight) {
      return std::int64_t{static_cast<std::int32_t>(words[(n + i) * WordLayout::kColumns + k])} *
             weight;
    };
    if constexpr (WordLayout::kWords == 1) {
      const auto quad = load(weights);  // the same for all columns
      return product(0, next ? quad.weight[1] : quad.weight[0]);
    } else {
      const auto quad = load(weights + n * WordLayout::kStride + (next ? 1 : 0));
      std::int64_t sum = 0;
      TERSOR_UNROLL
      for (unsigned i = 0; i < kChecksumProducts; ++i) sum += product(i, quad.weight[i]);
      return sum;
    }
  }

  ProductSum column_[WordLayout::kColumns];
  std::uint32_t key_ = kNone;  // of the group, and the column of the tile's first word
};

/// Returns the sum over all threads of a warp.
template <class Warp>
TERSOR_DEVICE std::uint64_t sum_of_warp(const Warp& warp, std::uint64_t sum) {
  constexpr unsigned kBits = 21;  // 32 numbers of this width fit into a word
  constexpr std::uint64_t kMask = (std::uint64_t{1} << kBits) - 1;
  const std::uint64_t low = warp.add(static_cast<std::uint32_t>(sum & kMask));
  const std::uint64_t middle = warp.add(static_cast<std::uint32_t>(sum >> kBits & kMask));
  const std::uint32_t high = warp.add(static_cast<std::uint32_t>(sum >> 2 * kBits));
  constexpr unsigned kBelow = kChecksumBits - 2 * kBits;  // bits above have weight 1
  const std::uint64_t upper = high & ((1u << kBelow) - 1);
  return fold_number(low + (middle << kBits) + (upper << 2 * kBits) + (high >> kBelow));
}

}  // namespace tersor::kernels
