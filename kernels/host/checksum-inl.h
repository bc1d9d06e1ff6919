// Sums the words of a frame while they are written or read, for one instruction set.
#if defined(TERSOR_KERNELS_HOST_CHECKSUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_HOST_CHECKSUM_INL_H_
#undef TERSOR_KERNELS_HOST_CHECKSUM_INL_H_
#else
#define TERSOR_KERNELS_HOST_CHECKSUM_INL_H_
#endif

#include "kernels/host/checksum.h"
#include "kernels/host/simd-inl.h"

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

constexpr std::size_t kWordBytes = sizeof(std::int32_t);
constexpr std::size_t kRowBytes = kChecksumColumns * kWordBytes;

#if TERSOR_PORTABLE

/// Column-wise sums of the rows of a group.
class ColumnSums {
 public:
  HWY_INLINE ColumnSums() {}

  /// Adds kRows whole rows with the weights from `weights` on.
  template <std::size_t kRows>
  HWY_INLINE void add(const std::byte* rows, const std::int32_t* weights) {
    for (std::size_t column = 0; column < kChecksumColumns; ++column) {
      std::int64_t products = 0;
      for (std::size_t row = 0; row < kRows; ++row)
        products += std::int64_t{word_of(rows + row * kRowBytes, column)} * weights[row];
      sums_[column].add(products);
    }
  }

  /// Adds a row with only the columns [begin, end).
  HWY_INLINE void add_part(const std::byte* row, std::size_t begin, std::size_t end,
                           std::int32_t weight) {
    for (std::size_t column = begin; column < end; ++column)
      sums_[column].add(std::int64_t{word_of(row, column)} * weight);
  }

  /// Calls visit(column, sum).
  template <class Visit>
  HWY_INLINE void each(const Visit& visit) const {
    for (std::size_t column = 0; column < kChecksumColumns; ++column) visit(column, sums_[column]);
  }

 private:
  HWY_INLINE static std::int32_t word_of(const std::byte* row, std::size_t column) {
    std::int32_t word;
    std::memcpy(&word, row + column * kWordBytes, sizeof word);
    return word;
  }

  ProductSum sums_[kChecksumColumns];
};

#else

// Without this, GCC loads a vector twice instead of keeping the vector in a register.
#if HWY_ARCH_X86
#define TERSOR_KEEP(vector) asm("" : "+v"((vector).raw))
#else
#define TERSOR_KEEP(vector)
#endif

using I64 = hn::Repartition<std::int64_t, I32>;
using U64 = hn::Repartition<std::uint64_t, I32>;
using VI64 = hn::Vec<I64>;

/// Column-wise sums of the rows of a group. Even and odd lanes of a vector are summed separately,
/// because 32-bit multiplications need separate lanes.
class ColumnSums {
 public:
  HWY_INLINE ColumnSums() {
    for (auto& part : parts_)
      for (Lanes& lanes : part) lanes = {hn::Zero(I64()), hn::Zero(I32())};
  }

  /// Adds kRows whole rows with the weights from `weights` on.
  template <std::size_t kRows>
  HWY_INLINE void add(const std::byte* rows, const std::int32_t* weights) {
    static_assert(kRows <= kChecksumProducts);
    for (std::size_t part = 0; part < kParts; ++part) {
      Products products = {hn::Zero(I64()), hn::Zero(I64())};
      for (std::size_t row = 0; row < kRows; ++row)
        products.add(hn::LoadU(I32(), lanes_of(rows + row * kRowBytes, part)), weights[row]);
      add(part, products);
    }
  }

  /// Adds a row with only the columns [begin, end).
  HWY_INLINE void add_part(const std::byte* row, std::size_t begin, std::size_t end,
                           std::int32_t weight) {
#if HWY_ARCH_X86  // on other targets, Highway reads masked lanes
    for (std::size_t part = 0; part < kParts; ++part) {
      const VI32 column = hn::Iota(I32(), static_cast<std::int32_t>(part * kLanes));
      const auto before = hn::Lt(column, hn::Set(I32(), static_cast<std::int32_t>(begin)));
      const auto inside = hn::Lt(column, hn::Set(I32(), static_cast<std::int32_t>(end)));
      Products products = {hn::Zero(I64()), hn::Zero(I64())};
      products.add(hn::MaskedLoad(hn::AndNot(before, inside), I32(), lanes_of(row, part)), weight);
      add(part, products);
    }
#else
    alignas(kRowBytes) std::byte words[kRowBytes] = {};
    std::memcpy(words + begin * kWordBytes, row + begin * kWordBytes, (end - begin) * kWordBytes);
    add<1>(words, &weight);
#endif
  }

  /// Calls visit(column, sum).
  template <class Visit>
  HWY_INLINE void each(const Visit& visit) const {
    alignas(64) std::uint64_t low[kLanes / 2];
    alignas(64) std::int32_t high[kLanes];
    for (std::size_t part = 0; part < kParts; ++part)
      for (std::size_t odd = 0; odd < 2; ++odd) {
        hn::Store(hn::BitCast(U64(), parts_[part][odd].low), U64(), low);
        hn::Store(parts_[part][odd].high, I32(), high);
        for (std::size_t lane = 0; lane < kLanes / 2; ++lane)
          visit(part * kLanes + 2 * lane + odd, ProductSum{low[lane], high[2 * lane + 1]});
      }
  }

 private:
  static constexpr std::size_t kParts = kChecksumColumns / kLanes;  // vectors per row

  /// Sums of products in 64-bit lanes, for words in even and in odd lanes.
  struct Products {
    HWY_INLINE void add(VI32 words, std::int32_t factor) {
      TERSOR_KEEP(words);
      const VI32 shifted = hn::BitCast(I32(), hn::ShiftRight<32>(hn::BitCast(U64(), words)));
      const VI32 weight = hn::Set(I32(), factor);
      even = hn::Add(even, hn::MulEven(words, weight));
      odd = hn::Add(odd, hn::MulEven(shifted, weight));
    }
    VI64 even, odd;
  };

  /// A ProductSum per 64-bit lane. Only the upper halves of `high` count.
  struct Lanes {
    HWY_INLINE void add(VI64 products) {
      constexpr int kShift = ProductSum::kHighShift - 32;
      low = hn::Add(low, products);
      high = hn::Add(high, hn::ShiftRight<kShift>(hn::BitCast(I32(), products)));
    }
    VI64 low;
    VI32 high;
  };

  HWY_INLINE static const std::int32_t* lanes_of(const std::byte* row, std::size_t part) {
    return reinterpret_cast<const std::int32_t*>(row) + part * kLanes;
  }

  HWY_INLINE void add(std::size_t part, const Products& products) {
    parts_[part][0].add(products.even);
    parts_[part][1].add(products.odd);
  }

  Lanes parts_[kParts][2];
};

#undef TERSOR_KEEP

#endif

/// The checksum of consecutive words.
class WordSum {
 public:
  /// `first_word`: index of the first word in the frame.
  explicit HWY_INLINE WordSum(std::uint64_t first_word)
      : position_(first_word % kChecksumGroup), group_(first_word / kChecksumGroup) {}

  /// Adds the next `count` words, at any address.
  HWY_INLINE void add(const std::byte* words, std::size_t count) {
    if (count == 0) return;         // `words` may be null
    ColumnSums columns = columns_;  // in registers
    std::size_t here;
    while (HWY_UNLIKELY((here = kChecksumGroup - position_) <= count)) {
      add(columns, words, here, position_);
      groups_ = add_checksums(groups_, of_group(columns, group_++));
      columns = ColumnSums();
      position_ = 0;
      words += here * kWordBytes;
      count -= here;
    }
    add(columns, words, count, position_);
    position_ += count;
    columns_ = columns;
  }

  /// Returns the checksum of all words so far.
  std::uint64_t value() const {
    return position_ == 0 ? groups_ : add_checksums(groups_, of_group(columns_, group_));
  }

 private:
  /// Adds words of one group. `position` is the index of the first word in the group.
  static HWY_INLINE void add(ColumnSums& columns, const std::byte* words, std::size_t count,
                             std::size_t position) {
    const std::int32_t* weights = kChecksumNumbers.weight + position / kChecksumColumns;
    const std::byte* const end = words + count * kWordBytes;
    if (const std::size_t column = position % kChecksumColumns; column != 0) {
      const std::byte* const row = words - column * kWordBytes;
      columns.add_part(row, column, std::min(column + count, kChecksumColumns), *weights++);
      words = row + kRowBytes;
    }
    constexpr auto kRow = static_cast<std::ptrdiff_t>(kRowBytes);
    for (; end - words >= 4 * kRow; words += 4 * kRow, weights += 4)
      columns.template add<4>(words, weights);
    for (; end - words >= kRow; words += kRow) columns.template add<1>(words, weights++);
    if (words < end)
      columns.add_part(words, 0, static_cast<std::size_t>(end - words) / kWordBytes, *weights);
  }

  // Passed by value: passing an address would keep the sums out of registers.
  static HWY_NOINLINE std::uint64_t of_group(ColumnSums columns, std::uint64_t group) {
    unsigned __int128 sum = 0;  // sum of 16 products below 2^124
    columns.each([&](std::size_t column, ProductSum products) HWY_ATTR {
      sum += static_cast<unsigned __int128>(products.reduced()) * kChecksumNumbers.power[0][column];
    });
    sum = (sum & kChecksumPrime) + (sum >> kChecksumBits);  // below 2^67
    const std::uint64_t all = add_checksums(static_cast<std::uint64_t>(sum) & kChecksumPrime,
                                            static_cast<std::uint64_t>(sum >> kChecksumBits));
    if (group == 0) return all;
    return multiply_checksums(all, kChecksumNumbers.power_of(group * kChecksumColumns));
  }

  std::size_t position_;  // index of the next word in its group
  std::uint64_t group_;
  std::uint64_t groups_ = 0;  // sum of all earlier groups
  ColumnSums columns_;
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_HOST_CHECKSUM_INL_H_
