// The loop behind kernels/host/checksum.h, once for each instruction set. A word's weight is
// split, 2(first + j) + 1 = 2·first + (2j + 1), so that within a piece weights and words have 32
// bits and a product 64; words at even and odd j are summed apart, as the products of 32 bits want
// it.

#include "kernels/host/checksum.h"

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/checksum.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/host/simd-inl.h"

#include <algorithm>
#include <iterator>
#include <numeric>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// Σ word_j and Σ word_j · (2j + 1), mod 2^64.
struct Sums {
  std::uint64_t plain = 0, weighted = 0;
};

/// From word `first` on, one at a time.
inline Sums sum_words(const std::byte* words, std::size_t first, std::size_t count) {
  Sums sums;
  for (std::size_t j = first; j < count; ++j) {
    std::uint32_t word;
    std::memcpy(&word, words + 4 * j, sizeof word);
    sums.plain += word;
    sums.weighted += static_cast<std::uint64_t>(word) * (2 * j + 1);
  }
  return sums;
}

#if TERSOR_PORTABLE

inline Sums sum_piece(const std::byte* words, std::size_t count) {
  return sum_words(words, 0, count);
}

#else

/// Modulo 2^64. GCC's own sum of AVX-512 lanes adds signed numbers, whose overflow is undefined.
template <typename V>
std::uint64_t sum_of_lanes(V values) {
  const hn::DFromV<V> d;
  HWY_ALIGN std::uint64_t lanes[hn::MaxLanes(d)];
  hn::Store(values, d, lanes);
  return std::accumulate(std::begin(lanes), std::end(lanes), std::uint64_t{0});
}

inline Sums sum_piece(const std::byte* words, std::size_t count) {
  const hn::Repartition<std::uint64_t, U32> wide;
  using V = hn::Vec<decltype(wide)>;
  const auto* values = reinterpret_cast<const std::uint32_t*>(words);
  V plain[2] = {hn::Zero(wide), hn::Zero(wide)};
  V weighted[2] = {hn::Zero(wide), hn::Zero(wide)};
  // Weights of the even words: 1, 5, 9, …; those of the odd ones are 2 more.
  V weight = hn::Add(hn::ShiftLeft<2>(hn::Iota(wide, 0)), hn::Set(wide, 1));
  const V two = hn::Set(wide, 2);
  const V next = hn::Set(wide, 2 * kLanes);
  const V low = hn::Set(wide, 0xffffffffu);
  std::size_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    const V even = hn::BitCast(wide, hn::LoadU(U32(), values + j));
    const V odd = hn::ShiftRight<32>(even);
    plain[0] = hn::Add(plain[0], hn::And(even, low));
    plain[1] = hn::Add(plain[1], odd);
    weighted[0] =
        hn::Add(weighted[0], hn::MulEven(hn::BitCast(U32(), even), hn::BitCast(U32(), weight)));
    weighted[1] = hn::Add(weighted[1], hn::MulEven(hn::BitCast(U32(), odd),
                                                   hn::BitCast(U32(), hn::Add(weight, two))));
    weight = hn::Add(weight, next);
  }
  Sums sums = sum_words(words, j, count);
  sums.plain += sum_of_lanes(hn::Add(plain[0], plain[1]));
  sums.weighted += sum_of_lanes(hn::Add(weighted[0], weighted[1]));
  return sums;
}

#endif

std::uint64_t checksum_on(const void* words, std::size_t count, std::uint64_t first_word) {
  constexpr std::size_t kPiece = std::size_t{1} << 30;  // words whose weights fit into 32 bits
  const auto* bytes = static_cast<const std::byte*>(words);
  std::uint64_t sum = 0;
  for (std::size_t first = 0; first < count; first += kPiece) {
    const Sums piece = sum_piece(bytes + 4 * first, std::min(kPiece, count - first));
    sum += piece.weighted + 2 * (first_word + first) * piece.plain;
  }
  return sum;
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

HWY_EXPORT(checksum_on);

std::uint64_t checksum(const void* words, std::size_t count, std::uint64_t first_word) {
  return TERSOR_DISPATCH(checksum_on)(words, count, first_word);
}

}  // namespace tersor::kernels
#endif
