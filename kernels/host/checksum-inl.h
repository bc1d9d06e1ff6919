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
      add_in_group(words, rest);
      close_group();
      words += rest * sizeof(std::int32_t);
      count -= rest;
    }
    add_in_group(words, count);
    word_ += count;
  }

  /// Of all words so far.
  std::uint64_t value() const {
    return add_checksums(groups_, multiply_checksums(power_, group_value()));
  }

 private:
  /// `count` words of the group, from word_ on.
  HWY_INLINE void add_in_group(const std::byte* words, std::size_t count) {
    const std::int32_t* weights = kChecksumNumbers.weight + word_;
    std::size_t i = 0;
#if !TERSOR_PORTABLE
    for (; i + kStep <= count; i += kStep)
      add_vectors(reinterpret_cast<const std::int32_t*>(words) + i, weights + i);
#endif
    for (; i < count; ++i) {
      std::int32_t word;
      std::memcpy(&word, words + i * sizeof word, sizeof word);
      single_ = fold_checksum(single_ + std::int64_t{word} * weights[i]);
    }
  }

  HWY_NOINLINE void close_group() {
    groups_ = value();
    power_ = multiply_checksums(power_, kChecksumNumbers.power[0][1]);
    word_ = 0;
    single_ = 0;
#if !TERSOR_PORTABLE
    even_ = odd_ = hn::Zero(I64());
#endif
  }

#if TERSOR_PORTABLE

  std::uint64_t group_value() const { return checksum_of(single_); }

#else

  using I64 = hn::Repartition<std::int64_t, I32>;
  using U64 = hn::Repartition<std::uint64_t, I32>;
  using VI64 = hn::Vec<I64>;
  static constexpr std::size_t kStep = 2 * kLanes;  // words; two products a lane fit into 64 bits
  static_assert(kStep / kLanes <= kChecksumProducts);

  /// kStep words: those at even and those at odd places apart, as products of 32 bits want it.
  HWY_INLINE void add_vectors(const std::int32_t* words, const std::int32_t* weights) {
    for (std::size_t i = 0; i < kStep; i += kLanes) {
      const VI32 vector = hn::LoadU(I32(), words + i);
      const VI32 shifted = hn::BitCast(I32(), hn::ShiftRight<32>(hn::BitCast(U64(), vector)));
      even_ = hn::Add(even_, hn::MulEven(vector, hn::LoadU(I32(), weights + i)));
      odd_ = hn::Add(odd_, hn::MulEven(shifted, hn::LoadU(I32(), weights + i + 1)));
    }
    even_ = fold(even_);
    odd_ = fold(odd_);
  }

  HWY_INLINE static VI64 fold(VI64 sum) {
    const VI64 low = hn::And(sum, hn::Set(I64(), static_cast<std::int64_t>(kChecksumPrime)));
    return hn::Add(low, hn::ShiftRight<kChecksumBits>(sum));
  }

  std::uint64_t group_value() const {
    std::int64_t lanes[2 * hn::MaxLanes(I64())];
    hn::StoreU(even_, I64(), lanes);
    hn::StoreU(odd_, I64(), lanes + hn::MaxLanes(I64()));
    std::uint64_t sum = checksum_of(single_);
    for (const std::int64_t lane : lanes) sum = add_checksums(sum, checksum_of(lane));
    return sum;
  }

  VI64 even_ = hn::Zero(I64());
  VI64 odd_ = hn::Zero(I64());
#endif

  std::size_t word_;          // the next one's place in its group
  std::uint64_t power_;       // of the group
  std::uint64_t groups_ = 0;  // of all groups before
  std::int64_t single_ = 0;   // of the group's words outside of vectors
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_HOST_CHECKSUM_INL_H_
