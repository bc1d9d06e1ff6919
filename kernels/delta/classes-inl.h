// The order of values and the classes of exponents, for one instruction set.
#if defined(TERSOR_KERNELS_DELTA_CLASSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_DELTA_CLASSES_INL_H_
#undef TERSOR_KERNELS_DELTA_CLASSES_INL_H_
#else
#define TERSOR_KERNELS_DELTA_CLASSES_INL_H_
#endif

#include "kernels/delta/cpu.h"
#include "kernels/delta/formulas.h"
#include "kernels/host/simd-inl.h"

#include <tersor/align.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// The order of a type's values: floats of both signs in the order of the numbers, one to one.
template <typename Word, unsigned kExponentBits>
struct ValueOrder {
  using Bits = Word;
  using Signed = std::make_signed_t<Word>;
  static constexpr unsigned kWidth = 8 * sizeof(Word), kExponent = kExponentBits;
  static constexpr unsigned kMantissa = kWidth - 1 - kExponentBits;
  static constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;  // all bits but the sign

  static Bits flip(Bits bits) { return kExponentBits == 0 ? bits : delta_flip(bits); }
  static Bits step(Bits old, Bits now) { return static_cast<Bits>(flip(now) - flip(old)); }
  static Bits moved(Bits old, Bits step) { return flip(static_cast<Bits>(flip(old) + step)); }
  static unsigned exponent(Bits bits) {
    if constexpr (kExponentBits == 0) return 0;
    return static_cast<unsigned>(bits >> kMantissa) & ((1u << kExponentBits) - 1);
  }
  static unsigned class_of(Bits bits, const DeltaClasses& classes) {
    const unsigned e = exponent(bits);
    return e < classes.first ? 0 : std::min(e - classes.first + 1, classes.count - 1);
  }
};

template <typename Visitor>
decltype(auto) visit_value_order(DeltaDtype dtype, const Visitor& visitor) {
  switch (dtype) {
    case DeltaDtype::kF32:
      return visitor(ValueOrder<std::uint32_t, 8>());
    case DeltaDtype::kBf16:
      return visitor(ValueOrder<std::uint16_t, 8>());
    case DeltaDtype::kF16:
      return visitor(ValueOrder<std::uint16_t, 5>());
    case DeltaDtype::kF64:
      return visitor(ValueOrder<std::uint64_t, 11>());
    case DeltaDtype::kE4m3:
      return visitor(ValueOrder<std::uint8_t, 4>());
    case DeltaDtype::kE5m2:
      return visitor(ValueOrder<std::uint8_t, 5>());
    case DeltaDtype::kInt8:
      return visitor(ValueOrder<std::uint8_t, 0>());
    case DeltaDtype::kInt16:
      return visitor(ValueOrder<std::uint16_t, 0>());
    case DeltaDtype::kInt32:
      return visitor(ValueOrder<std::uint32_t, 0>());
    default:
      return visitor(ValueOrder<std::uint64_t, 0>());
  }
}

/// Returns a mask of at most 64 values. Bit i is 1 if `scalar` or `vector` is true for value i.
template <typename Bits, class Scalar, class Vector>
HWY_INLINE std::uint64_t mask_of(std::size_t count, const Scalar& scalar, const Vector& vector) {
  std::uint64_t mask = 0;
  const hn::CappedTag<Bits, 64> lanes;
  constexpr std::size_t kStep = hn::MaxLanes(hn::CappedTag<Bits, 64>());
  if constexpr (kStep % 8 == 0) {
    if (count == 64) {
      std::uint8_t bytes[16];
      for (std::size_t i = 0; i < 64; i += kStep)
        hn::StoreMaskBits(lanes, vector(lanes, i), bytes + i / 8);
      std::memcpy(&mask, bytes, sizeof mask);
      return mask;
    }
  }
  for (std::size_t i = 0; i < count; ++i) mask |= std::uint64_t{scalar(i)} << i;
  return mask;
}

template <typename Bits>
HWY_INLINE std::uint64_t changed_mask(const Bits* base, const Bits* now, std::size_t count) {
  return mask_of<Bits>(
      count, [&](std::size_t i) { return base[i] != now[i]; },
      [&](auto lanes, std::size_t i)
          HWY_ATTR { return hn::Ne(hn::LoadU(lanes, base + i), hn::LoadU(lanes, now + i)); });
}

/// Bit i is 1 if step i is negative.
template <class L>
HWY_INLINE std::uint64_t negative_mask(const typename L::Bits* steps, std::size_t count) {
  return mask_of<typename L::Bits>(
      count, [&](std::size_t i) { return steps[i] > L::kMagnitude; },
      [&](auto lanes, std::size_t i) HWY_ATTR {
        const hn::RebindToSigned<decltype(lanes)> signeds;
        const auto own = hn::BitCast(signeds, hn::LoadU(lanes, steps + i));
        return hn::RebindMask(lanes, hn::Lt(own, hn::Zero(signeds)));
      });
}

/// Finds the values of each class. Without classes of exponents, does nothing.
template <class L>
HWY_INLINE void find_classes(const typename L::Bits* base, std::size_t count,
                             const DeltaClasses& classes, DeltaScratch& scratch) {
  using Bits = typename L::Bits;
  if (classes.count == 1) return;
  using Signed = typename L::Signed;
  constexpr Bits kMagnitude = L::kMagnitude;
  std::uint16_t before[kDeltaClasses] = {};
  for (std::size_t word = 0; word < ceil_div(count, 64); ++word) {
    const Bits* values = base + 64 * word;
    const std::size_t valid = std::min<std::size_t>(64, count - 64 * word);
    std::uint64_t above = valid == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << valid) - 1;
    for (unsigned c = 0; c < classes.count; ++c) {
      std::uint64_t next = 0;  // the values of later classes
      if (c + 1 < classes.count && classes.first + c < 1u << L::kExponent) {
        const auto min_bits = static_cast<Bits>(Bits(classes.first + c) << L::kMantissa);
        next = mask_of<Bits>(
            valid, [&](std::size_t i) { return (values[i] & kMagnitude) >= min_bits; },
            [&](auto lanes, std::size_t i) HWY_ATTR {
              const hn::RebindToSigned<decltype(lanes)> signeds;
              const auto magnitude =
                  hn::And(hn::LoadU(lanes, values + i), hn::Set(lanes, kMagnitude));
              const auto above_min = hn::Gt(hn::BitCast(signeds, magnitude),
                                            hn::Set(signeds, static_cast<Signed>(min_bits - 1)));
              return hn::RebindMask(lanes, above_min);
            });
      }
      scratch.masks[c][word] = above & ~next;
      scratch.before[c][word] = before[c];
      before[c] = static_cast<std::uint16_t>(before[c] + std::popcount(above & ~next));
      above = next;
    }
  }
  for (unsigned c = 0; c < classes.count; ++c) scratch.before[c][ceil_div(count, 64)] = before[c];
}

/// The position of the (rank + 1)-th 1 bit of a byte.
struct ByteSelectTable {
  std::uint8_t position[8][256] = {};
};
constexpr ByteSelectTable make_byte_select_table() {
  ByteSelectTable ones;
  for (unsigned byte = 0; byte < 256; ++byte)
    for (unsigned bit = 0, rank = 0; bit < 8; ++bit)
      if ((byte >> bit & 1) != 0) ones.position[rank++][byte] = static_cast<std::uint8_t>(bit);
  return ones;
}
alignas(64) inline constexpr ByteSelectTable kByteSelectTable = make_byte_select_table();

/// Returns the position of the (rank + 1)-th 1 bit, without branches (Vigna 2008).
HWY_INLINE unsigned select_one(std::uint64_t word, unsigned rank) {
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
  return static_cast<unsigned>(std::countr_zero(_pdep_u64(std::uint64_t{1} << rank, word)));
#else
  constexpr std::uint64_t kOnes = 0x0101010101010101u, kHigh = 0x8080808080808080u;
  std::uint64_t sums = word - (word >> 1 & 0x5555555555555555u);
  sums = (sums & 0x3333333333333333u) + (sums >> 2 & 0x3333333333333333u);
  sums = ((sums + (sums >> 4)) & 0x0f0f0f0f0f0f0f0fu) * kOnes;  // ones up to each byte
  const std::uint64_t smaller = ((kHigh | rank * kOnes) - sums) & kHigh;
  const auto at = 8 * static_cast<unsigned>(std::popcount(smaller));
  rank -= static_cast<unsigned>(sums << 8 >> at & 0xff);
  return at + kByteSelectTable.position[rank][word >> at & 0xff];
#endif
}

/// Finds the word of each value of each class: word[first[c] + rank].
HWY_INLINE void find_words(std::size_t count, const DeltaClasses& classes, DeltaScratch& scratch) {
  const std::size_t words = ceil_div(count, 64);
  std::size_t first = 0;
  for (unsigned c = 0; c < classes.count; ++c) {
    scratch.first[c] = static_cast<std::uint16_t>(first);
    std::uint8_t* const to = scratch.word + first;
    for (std::size_t word = 0; word < words; ++word)  // later words overwrite their own values
      std::memset(to + scratch.before[c][word], static_cast<int>(word), 64);
    first += scratch.before[c][words];
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_DELTA_CLASSES_INL_H_
