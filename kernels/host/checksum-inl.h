// Summing the words of a frame as they are written or read, for one instruction set.
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

HWY_INLINE std::int32_t load_word(const std::byte* words, std::size_t i) {
  std::int32_t word;
  std::memcpy(&word, words + i * kWordBytes, sizeof word);
  return word;
}

#if TERSOR_PORTABLE

/// Products of the words of one group.
class WordProducts {
 public:
  HWY_INLINE WordProducts() {}

  /// `count` words, whose weights begin at number `first`.
  HWY_INLINE void add(const std::byte* words, std::size_t count, std::size_t first) {
    for (std::size_t i = 0; i < count; ++i)
      sum_ = fold_checksum(sum_ +
                           std::int64_t{load_word(words, i)} * kChecksumNumbers.weight[first + i]);
  }
  std::uint64_t value() const { return checksum_of(sum_); }

 private:
  std::int64_t sum_ = 0;
};

#else

using I64 = hn::Repartition<std::int64_t, I32>;
using U64 = hn::Repartition<std::uint64_t, I32>;
using VI64 = hn::Vec<I64>;

/// Products of words, those at even and those at odd places apart, as products of 32 bits want it.
struct VectorProducts {
  HWY_INLINE VectorProducts() : even(hn::Zero(I64())), odd(hn::Zero(I64())) {}

  /// kVectors vectors of words, whose weights begin at number `first`.
  template <std::size_t kVectors>
  HWY_INLINE void add(const std::byte* words, std::size_t first) {
    static_assert(kVectors <= kChecksumProducts);
    for (std::size_t i = 0; i < kVectors * kLanes; i += kLanes) {
      const VI32 vector = hn::LoadU(I32(), reinterpret_cast<const std::int32_t*>(words) + i);
      const VI32 shifted = hn::BitCast(I32(), hn::ShiftRight<32>(hn::BitCast(U64(), vector)));
      const VI32 weights = hn::LoadU(I32(), kChecksumNumbers.weight + first + i);
      const VI32 next_weights = hn::LoadU(I32(), kNextWeights.weight + first + i);
      even = hn::Add(even, hn::MulEven(vector, weights));
      odd = hn::Add(odd, hn::MulEven(shifted, next_weights));
    }
    even = fold(even);
    odd = fold(odd);
  }

  HWY_INLINE static VI64 fold(VI64 sum) {
    const VI64 low = hn::And(sum, hn::Set(I64(), static_cast<std::int64_t>(kChecksumPrime)));
    return hn::Add(low, hn::ShiftRight<kChecksumBits>(sum));
  }

  VI64 even, odd;
};

/// Products of the words of one group. Two take turns, so that none waits for another.
class WordProducts {
 public:
  HWY_INLINE WordProducts() {}

  /// `count` words, whose weights begin at number `first`.
  HWY_INLINE void add(const std::byte* words, std::size_t count, std::size_t first) {
    VectorProducts first_products = products_[0], second_products = products_[1];
    std::size_t i = 0;
    for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
      first_products.template add<2>(words + i * kWordBytes, first + i);
      second_products.template add<2>(words + (i + 2 * kLanes) * kWordBytes,
                                      first + i + 2 * kLanes);
    }
    for (; i + kLanes <= count; i += kLanes)
      first_products.template add<1>(words + i * kWordBytes, first + i);
    products_[0] = first_products;
    products_[1] = second_products;
    for (; i < count; ++i)
      single_ = fold_checksum(single_ + std::int64_t{load_word(words, i)} *
                                            kChecksumNumbers.weight[first + i]);
  }

  std::uint64_t value() const {
    const VI64 first = hn::Add(products_[0].even, products_[0].odd);
    const VI64 second = hn::Add(products_[1].even, products_[1].odd);
    const VI64 mask = hn::Set(I64(), 0xffffffff);
    const VI64 low = hn::Add(hn::And(first, mask), hn::And(second, mask));
    const VI64 high = hn::Add(hn::ShiftRight<32>(first), hn::ShiftRight<32>(second));
    return checksum_of_parts(single_ + sum_of_lanes(low), sum_of_lanes(high));
  }

 private:
  static std::int64_t sum_of_lanes(VI64 vector) {
    return hn::GetLane(hn::SumOfLanes(I64(), vector));
  }

  VectorProducts products_[2];
  std::int64_t single_ = 0;  // of words outside of vectors
};

#endif

/// The checksum of words that follow each other.
class WordSum {
 public:
  /// `first_word`: where they begin in the frame.
  explicit WordSum(std::uint64_t first_word)
      : word_(first_word % kChecksumGroup),
        power_(kChecksumNumbers.power_of(first_word / kChecksumGroup)) {}

  /// The next `count` words, at any address.
  HWY_INLINE void add(const std::byte* words, std::size_t count) {
    while (HWY_UNLIKELY(word_ + count >= kChecksumGroup)) {
      const std::size_t rest = kChecksumGroup - word_;
      products_.add(words, rest, word_);
      close_group();
      words += rest * kWordBytes;
      count -= rest;
    }
    products_.add(words, count, word_);
    word_ += count;
  }

  /// Of all words so far.
  std::uint64_t value() const {
    return add_checksums(groups_, multiply_checksums(power_, products_.value()));
  }

 private:
  HWY_NOINLINE void close_group() {
    groups_ = value();
    power_ = multiply_checksums(power_, kChecksumNumbers.power[0][1]);
    word_ = 0;
    products_ = {};
  }

  std::size_t word_;          // the next one's place in its group
  std::uint64_t power_;       // of the group
  std::uint64_t groups_ = 0;  // of all groups before
  WordProducts products_;
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_HOST_CHECKSUM_INL_H_
