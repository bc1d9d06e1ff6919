// The random bytes of kernels/scalar/philox.h, generated 512 at a time in element order.
#if defined(TERSOR_KERNELS_HOST_NOISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_HOST_NOISE_INL_H_
#undef TERSOR_KERNELS_HOST_NOISE_INL_H_
#else
#define TERSOR_KERNELS_HOST_NOISE_INL_H_
#endif

#include "kernels/host/arguments.h"
#include "kernels/host/simd-inl.h"
#include "kernels/scalar/philox.h"

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// The Philox keys of all rounds.
struct RoundKeys {
  explicit RoundKeys(std::uint64_t key) {
    std::uint32_t key0 = static_cast<std::uint32_t>(key);
    std::uint32_t key1 = static_cast<std::uint32_t>(key >> 32);
    for (auto& round : word) {
      round[0] = key0;
      round[1] = key1;
      key0 += kPhiloxBump0;
      key1 += kPhiloxBump1;
    }
  }

  std::uint64_t word[kPhiloxRounds][2];
};

#if TERSOR_PORTABLE

/// Generates the 512 bytes of one unit: byte 128·w + 4·j + b is byte b of word w of counter j.
inline void fill_unit(const Noise& noise, const RoundKeys&, std::uint64_t unit,
                      std::uint8_t* bytes) {
  for (std::size_t j = 0; j < kNoiseUnitCounters; ++j) {
    const PhiloxWords words =
        noise_words(unit * kNoiseUnitCounters + j, noise.key, noise.step, noise.parameter);
    for (std::size_t w = 0; w < 4; ++w)
      for (std::size_t b = 0; b < 4; ++b)
        bytes[128 * w + 4 * j + b] = static_cast<std::uint8_t>(words.word[w] >> (8 * b));
  }
}

#else

using U64 = hn::Repartition<std::uint64_t, U32>;
using VU64 = hn::Vec<U64>;

/// Counters in 64-bit lanes. Only the low half of each word counts. The high half holds leftovers
/// of the products and is never read.
struct VectorWords {
  VU64 word[4];
};

HWY_INLINE VU64 product(VU64 a, VU32 multiplier) {
  return hn::MulEven(hn::BitCast(U32(), a), multiplier);
}

HWY_INLINE VectorWords philox(VectorWords counter, const RoundKeys& keys) {
  const VU32 multiplier0 = hn::Set(U32(), kPhiloxMultiplier0);
  const VU32 multiplier1 = hn::Set(U32(), kPhiloxMultiplier1);
  VU64 w0 = counter.word[0], w1 = counter.word[1], w2 = counter.word[2], w3 = counter.word[3];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const VU64 product0 = product(w0, multiplier0);
    const VU64 product1 = product(w2, multiplier1);
    w0 = hn::Xor(hn::ShiftRight<32>(product1), hn::Xor(w1, hn::Set(U64(), keys.word[round][0])));
    w2 = hn::Xor(hn::ShiftRight<32>(product0), hn::Xor(w3, hn::Set(U64(), keys.word[round][1])));
    w1 = product1;
    w3 = product0;
  }
  return {{w0, w1, w2, w3}};
}

/// Generates the 512 bytes of one unit. Even and odd counters are computed separately, because
/// merging them then puts the words in order.
inline void fill_unit(const Noise& noise, const RoundKeys& keys, std::uint64_t unit,
                      std::uint8_t* bytes) {
  const std::uint64_t first = unit * kNoiseUnitCounters;
  const VU64 twice = hn::Add(hn::Iota(U64(), 0), hn::Iota(U64(), 0));
  const VU64 high = hn::Set(U64(), first >> 32);
  const VU64 step = hn::Set(U64(), noise.step);
  const VU64 parameter = hn::Set(U64(), noise.parameter);
  for (std::size_t j = 0; j < kNoiseUnitCounters; j += kLanes) {
    const VU64 counter = hn::Add(hn::Set(U64(), static_cast<std::uint32_t>(first) + j), twice);
    const VU64 next = hn::Add(counter, hn::Set(U64(), 1));
    const VectorWords even = philox({{counter, high, step, parameter}}, keys);
    const VectorWords odd = philox({{next, high, step, parameter}}, keys);
    for (std::size_t w = 0; w < 4; ++w) {
      const VU32 words = hn::OddEven(hn::BitCast(U32(), hn::ShiftLeft<32>(odd.word[w])),
                                     hn::BitCast(U32(), even.word[w]));
      hn::StoreU(words, U32(), reinterpret_cast<std::uint32_t*>(bytes + 128 * w + 4 * j));
    }
  }
}

#endif

/// The random bytes of consecutive elements, generated on first use.
class NoiseBytes {
 public:
  explicit NoiseBytes(const Noise& noise) : noise_(noise), keys_(noise.key) {}

  /// Returns the bytes of `count` ≤ 512 elements from first_index + position on, or null for
  /// nearest rounding. Positions must not decrease.
  HWY_INLINE const std::uint8_t* at(std::size_t position, std::size_t count) {
    if (noise_.rounding == Rounding::kNearest) return nullptr;
    const std::uint64_t element = noise_.first_index + position;
    const std::size_t offset = element % kNoiseUnit;
    prepare(element / kNoiseUnit, offset + count > kNoiseUnit ? 2 : 1);
    return bytes_ + offset;
  }

 private:
  /// Makes the buffer start at `unit` and hold `units` units.
  void prepare(std::uint64_t unit, std::size_t units) {
    if (buffered_units_ == 2 && unit == unit_ + 1) {
      std::copy_n(bytes_ + kNoiseUnit, kNoiseUnit, bytes_);
      buffered_units_ = 1;
    } else if (unit != unit_) {
      buffered_units_ = 0;
    }
    unit_ = unit;
    for (; buffered_units_ < units; ++buffered_units_)
      fill_unit(noise_, keys_, unit + buffered_units_, bytes_ + buffered_units_ * kNoiseUnit);
  }

  const Noise noise_;
  const RoundKeys keys_;
  std::uint64_t unit_ = 0;
  std::size_t buffered_units_ = 0;  // units in the buffer: unit_ and, if 2, the next
  alignas(64) std::uint8_t bytes_[2 * kNoiseUnit];
};

/// 16 random bits per element. NoiseBytes provides 8 bits.
class WideNoise {
 public:
  explicit WideNoise(const Noise& noise)
      : high_(with_key(noise, wide_key(noise.key).high)),
        low_(with_key(noise, wide_key(noise.key).low)) {}

  /// Prepares the bits of `count` elements from first_index + position on.
  HWY_INLINE void prepare(std::size_t position, std::size_t count) {
    high_bytes_ = high_.at(position, count);
    low_bytes_ = low_.at(position, count);
  }

  /// Returns the bits of the elements from `index` on, relative to `position`.
  HWY_INLINE VI32 at(std::size_t index) const {
    const hn::Rebind<std::uint8_t, I32> narrow;
    const VI32 high = hn::PromoteTo(I32(), hn::LoadU(narrow, high_bytes_ + index));
    const VI32 low = hn::PromoteTo(I32(), hn::LoadU(narrow, low_bytes_ + index));
    return hn::Or(hn::ShiftLeft<8>(high), low);
  }

 private:
  static Noise with_key(Noise noise, std::uint64_t key) {
    noise.key = key;
    return noise;
  }

  NoiseBytes high_, low_;
  const std::uint8_t* high_bytes_ = nullptr;
  const std::uint8_t* low_bytes_ = nullptr;
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_HOST_NOISE_INL_H_
