// entropy on the CPU. A block of 4,096 values stays in the first-level cache: split into bytes of
// sign and mantissa and into ranks, then packed. Memory traffic in bytes per value of bf16: 2 read
// and about 1.3 written, or the reverse.

#include "kernels/entropy/cpu.h"

#include "kernels/host/targets.h"

#include <hwy/cache_control.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/entropy/cpu.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/bits/bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// The fields of a value's bits, from the top: sign, exponent, mantissa.
template <typename Word, unsigned kExponentBits, unsigned kMantissaBits>
struct Fields {
  using Bits = Word;
  static constexpr unsigned kExponent = kExponentBits, kMantissa = kMantissaBits;
  static constexpr unsigned kMaxExponent = (1u << kExponentBits) - 1;
  static constexpr Bits kMantissaMask = (Bits{1} << kMantissaBits) - 1;
  /// The rest is the mantissa below the sign, in whole bytes and further bits.
  static constexpr unsigned kBytes = (kMantissaBits + 1) / 8, kBits = (kMantissaBits + 1) % 8;

  static constexpr std::uint8_t exponent(Bits bits) {
    return static_cast<std::uint8_t>(bits >> kMantissa & kMaxExponent);
  }
  static constexpr Bits rest(Bits bits) {
    return static_cast<Bits>((bits & kMantissaMask) | (bits >> kExponent & (Bits{1} << kMantissa)));
  }
  static constexpr Bits value(Bits rest, Bits exponent) {
    return static_cast<Bits>((rest & kMantissaMask) |
                             (rest >> kMantissa) << (8 * sizeof(Bits) - 1) | exponent << kMantissa);
  }
};

template <typename Visitor>
decltype(auto) visit_fields(Dtype dtype, const Visitor& visitor) {
  if (dtype == Dtype::kF32) return visitor(Fields<std::uint32_t, 8, 23>());
  if (dtype == Dtype::kF16) return visitor(Fields<std::uint16_t, 5, 10>());
  return visitor(Fields<std::uint16_t, 8, 7>());
}

constexpr std::size_t kPart = 64;                       // values; padded blocks have whole parts
constexpr std::size_t kCacheLine = 64;                  // bytes of a line of the cache
constexpr unsigned kMaxLowBits = 4;                     // the largest k
constexpr std::size_t kPlaneBytes = kEntropyBlock / 8;  // of a bit per value
using Plane = std::uint8_t[kPlaneBytes + kPackedSlack];
using Numbers = std::uint8_t[kEntropyBlock + kPackedSlack];  // one byte per value

/// Words of a block with `low_bits` = k before its unary codes, for values padded to `padded`.
template <class F>
constexpr std::size_t fixed_words(std::size_t padded, unsigned low_bits) {
  return 1 + padded / 4 * F::kBytes + padded / 32 * (F::kBits + low_bits);
}

/// `count` is a multiple of 64.
HWY_INLINE std::size_t sum_of(const std::uint8_t* numbers, std::size_t count) {
#if TERSOR_PORTABLE
  std::size_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += numbers[i];
  return sum;
#else
  const hn::CappedTag<std::uint8_t, 64> lanes;
  const hn::Repartition<std::uint64_t, decltype(lanes)> sums;
  auto sum = hn::Zero(sums);
  for (std::size_t i = 0; i < count; i += hn::MaxLanes(lanes))
    sum = hn::Add(sum, hn::SumsOf8(hn::LoadU(lanes, numbers + i)));
  return static_cast<std::size_t>(hn::GetLane(hn::SumOfLanes(sums, sum)));
#endif
}

/// Shifts each number to the left. `count` is a multiple of 64.
HWY_INLINE void shift_left(std::uint8_t* numbers, std::size_t count, unsigned bits) {
#if TERSOR_PORTABLE
  for (std::size_t i = 0; i < count; ++i)
    numbers[i] = static_cast<std::uint8_t>(numbers[i] << bits);
#else
  const hn::CappedTag<std::uint8_t, 64> lanes;
  const hn::Repartition<std::uint16_t, decltype(lanes)> pairs;
  const auto valid = hn::Set(lanes, static_cast<std::uint8_t>(0xff >> bits));
  for (std::size_t i = 0; i < count; i += hn::MaxLanes(lanes)) {
    const auto own = hn::BitCast(pairs, hn::And(hn::LoadU(lanes, numbers + i), valid));
    const auto shifted = hn::ShiftLeftSame(own, static_cast<int>(bits));
    hn::StoreU(hn::BitCast(lanes, shifted), lanes, numbers + i);
  }
#endif
}

/// Replaces each number by table[number]. Vectors of numbers in [first, first + 64) are looked up
/// at once.
HWY_INLINE void look_up(const std::uint8_t* table, [[maybe_unused]] std::uint8_t first,
                        std::size_t count, std::uint8_t* numbers) {
  std::size_t step = count;
#if !TERSOR_PORTABLE
  const hn::CappedTag<std::uint8_t, 64> lanes;
  const hn::RebindToSigned<decltype(lanes)> signeds;
  step = hn::MaxLanes(lanes);
  const auto part = [&](unsigned i)
                        HWY_ATTR { return hn::LoadDup128(lanes, table + first + 16 * i); };
  const auto first_part = part(0), second = part(1), third = part(2), fourth = part(3);
  const auto low = hn::Set(lanes, 15), first_number = hn::Set(lanes, first);
  const auto high_bits = hn::Set(lanes, 0xc0);
  const auto bit4 = hn::Set(lanes, 16), bit5 = hn::Set(lanes, 32);
#endif
  for (std::size_t i = 0; i < count; i += step) {
#if !TERSOR_PORTABLE
    const auto number = hn::Sub(hn::LoadU(lanes, numbers + i), first_number);
    const auto outside = hn::BitCast(signeds, hn::And(number, high_bits));
    if (HWY_LIKELY(hn::AllTrue(signeds, hn::Eq(outside, hn::Zero(signeds))))) {
      const auto index = hn::And(number, low);
      const auto is_odd = hn::TestBit(number, bit4);
      const auto lower = hn::IfThenElse(is_odd, hn::TableLookupBytes(second, index),
                                        hn::TableLookupBytes(first_part, index));
      const auto upper = hn::IfThenElse(is_odd, hn::TableLookupBytes(fourth, index),
                                        hn::TableLookupBytes(third, index));
      hn::StoreU(hn::IfThenElse(hn::TestBit(number, bit5), upper, lower), lanes, numbers + i);
      continue;
    }
#endif
    for (std::size_t j = i; j < i + step; ++j) numbers[j] = table[numbers[j]];
  }
}

/// The block as fields: exponents and the rest. Requests the next block from memory, and the memory
/// at `next` for later writes of the bytes.
template <class F>
HWY_INLINE void split(const typename F::Bits* bits, std::size_t padded, const std::byte* next,
                      std::uint8_t* exponents, std::byte* bytes, std::uint8_t* high) {
  auto* plane = reinterpret_cast<std::uint8_t*>(bytes);
  for (std::size_t at = 0; at < padded; at += kPart) {
    for (std::size_t i = 0; i < kPart; i += kCacheLine / sizeof *bits)
      hwy::Prefetch(bits + padded + at + i);
    for (unsigned byte = 0; byte < F::kBytes; ++byte)
      __builtin_prefetch(next + byte * padded + at, 1);
    for (std::size_t i = at; i < at + kPart; ++i) exponents[i] = F::exponent(bits[i]);
    for (unsigned byte = 0; byte < F::kBytes; ++byte)
      for (std::size_t i = at; i < at + kPart; ++i)
        plane[byte * padded + i] = static_cast<std::uint8_t>(F::rest(bits[i]) >> 8 * byte);
    if constexpr (F::kBits != 0)
      for (std::size_t i = at; i < at + kPart; ++i)
        high[i] = static_cast<std::uint8_t>(F::rest(bits[i]) >> 8 * F::kBytes);
  }
}

/// The values of fields. Requests the memory of the next block, whose words begin at `next`.
template <class F>
HWY_INLINE void join(const std::byte* rest, const std::uint8_t* high, const std::uint8_t* exponents,
                     std::size_t padded, const std::byte* next, typename F::Bits* bits) {
  using Bits = typename F::Bits;
  for (std::size_t at = 0; at < padded; at += kPart) {
    for (std::size_t i = 0; i < kPart; i += kCacheLine / sizeof(Bits)) {
      __builtin_prefetch(bits + padded + at + i, 1);
      hwy::Prefetch(next + (at + i) * sizeof(Bits));
    }
    for (std::size_t i = at; i < at + kPart; ++i) {
      Bits all = 0;
      for (unsigned byte = 0; byte < F::kBytes; ++byte)
        all = static_cast<Bits>(all | static_cast<Bits>(rest[byte * padded + i]) << 8 * byte);
      if constexpr (F::kBits != 0) all = static_cast<Bits>(all | Bits{high[i]} << 8 * F::kBytes);
      bits[i] = F::value(all, exponents[i]);
    }
  }
}

/// Returns the values if they need no copy that is aligned and padded.
template <typename Bits, typename Pointer>
Bits* whole_block(Pointer* values, std::size_t count) {
  const bool whole =
      count % 64 == 0 && reinterpret_cast<std::uintptr_t>(values) % alignof(Bits) == 0;
  return whole ? static_cast<Bits*>(values) : nullptr;
}

template <class F>
std::uint16_t encode_block(const void* values, std::size_t count, const EntropyTable& table,
                           std::byte* words) {
  using Bits = typename F::Bits;
  alignas(64) Bits own[kEntropyBlock];
  const std::size_t padded = align_up(count, 64), bytes = count * sizeof(Bits);
  const Bits* bits = whole_block<const Bits>(values, count);
  if (bits == nullptr) {
    std::memcpy(own, values, bytes);
    std::fill(own + count, own + padded, Bits{0});
    bits = own;
  }
  Bits any = 0;
  for (std::size_t i = 0; i < padded && any == 0; i += 64)
    for (std::size_t j = i; j < i + 64; ++j) any |= bits[j];
  if (any == 0) return 0;

  alignas(64) Numbers ranks, high;
  alignas(64) std::byte rest[F::kBytes * kEntropyBlock];
  split<F>(bits, padded, words, ranks, rest, high);
  look_up(table.rank, table.window, padded, ranks);
  std::fill(ranks + count, ranks + padded, std::uint8_t{0});

  // The sum of all (rank >> k) follows from the sum of the ranks and the ones of the low planes.
  alignas(64) Plane low[kMaxLowBits];
  std::size_t sum = sum_of(ranks, padded), best = sum, code_bits = sum + count;
  unsigned low_bits = 0;
  for (unsigned bit = 0; bit < kMaxLowBits; ++bit) {
    sum = (sum - put_plane(ranks, padded, bit, low[bit])) / 2;
    const std::size_t size = sum + (bit + 1) * count;
    if (size >= best) break;  // the size is convex in the width
    best = size;
    low_bits = bit + 1;
    code_bits = sum + count;
  }
  const std::size_t fixed = fixed_words<F>(padded, low_bits),
                    size = fixed + ceil_div(code_bits, 32);
  const std::size_t plain = ceil_div(bytes, 4);
  if (size >= plain) {
    std::memmove(words, bits, 4 * plain);  // `bits` is padded with zeros
    return kEntropyPlain;
  }
  const std::uint32_t head = low_bits;
  std::memcpy(words, &head, sizeof head);
  std::memcpy(words + 4, rest, F::kBytes * padded);
  std::byte* next = words + 4 + F::kBytes * padded;
  const auto append = [&](const std::uint8_t* plane) {
    std::memcpy(next, plane, padded / 8);
    next += padded / 8;
  };
  Plane plane;
  for (unsigned bit = 0; bit < F::kBits; ++bit) {
    put_plane(high, padded, bit, plane);
    append(plane);
  }
  for (unsigned bit = 0; bit < low_bits; ++bit) append(low[bit]);
  alignas(64) std::byte codes[kEntropyBlock * sizeof(Bits) + kPackedSlack];
  PlaneWriter writer(codes);
  put_quotients(writer, ranks, count, low_bits);
  std::memcpy(next, codes, 4 * writer.finish());
  return static_cast<std::uint16_t>(size);
}

template <class F>
const char* decode_block(const std::byte* words, std::size_t size, std::size_t count,
                         const EntropyTable& table, void* values) {
  using Bits = typename F::Bits;
  const std::size_t padded = align_up(count, 64);
  std::uint32_t low_bits;
  std::memcpy(&low_bits, words, sizeof low_bits);
  if (low_bits > kMaxLowBits) return "a block has an unknown head";
  const std::size_t fixed = fixed_words<F>(padded, low_bits);
  if (size <= fixed) return "a block is too short";
  alignas(64) Numbers ranks;
  const std::size_t end = extract_quotients(words + 4 * fixed, size - fixed, count, ranks);
  if (end == kInvalidPlane || ceil_div(end, 32) != size - fixed)
    return "the unary codes of a block are damaged";
  std::uint8_t max_rank = 0;
  for (std::size_t i = 0; i < count; ++i) max_rank = std::max(max_rank, ranks[i]);
  if (max_rank > F::kMaxExponent >> low_bits) return "a block has a rank without an exponent";
  if (values == nullptr) return nullptr;

  const std::byte* next = words + 4;
  const auto add = [&](unsigned bit, std::uint8_t* numbers) {
    Plane plane;  // with slack: the block may end soon after its planes
    std::memcpy(plane, next, padded / 8);
    add_plane(plane, padded, bit, numbers);
    next += padded / 8;
  };
  const std::byte* rest = next;
  next += F::kBytes * padded;
  alignas(64) Numbers high;
  if constexpr (F::kBits != 0) {
    std::fill(high, high + padded, std::uint8_t{0});
    for (unsigned bit = 0; bit < F::kBits; ++bit) add(bit, high);
  }
  std::fill(ranks + count, ranks + padded, std::uint8_t{0});
  if (low_bits != 0) shift_left(ranks, padded, low_bits);
  for (unsigned bit = 0; bit < low_bits; ++bit) add(bit, ranks);
  look_up(table.exponent, 0, padded, ranks);

  alignas(64) Bits own[kEntropyBlock];
  Bits* const whole = whole_block<Bits>(values, count);
  Bits* const bits = whole != nullptr ? whole : own;
  join<F>(rest, high, ranks, padded, words + 4 * size, bits);
  if (whole == nullptr) std::memcpy(values, own, count * sizeof(Bits));
  return nullptr;
}

void entropy_count_on(const void* values, std::size_t count, Dtype dtype,
                      std::uint32_t counts[256]) {
  visit_fields(dtype, [&]<class F>(F) {
    const auto* bits = static_cast<const typename F::Bits*>(values);
    std::uint32_t parts[4][256] = {};  // equal exponents in turn would wait for each other
    std::size_t done = 0;
    for (; done + 4 <= count; done += 4)
      for (std::size_t i = 0; i < 4; ++i) ++parts[i][F::exponent(bits[done + i])];
    for (; done < count; ++done) ++parts[0][F::exponent(bits[done])];
    for (std::size_t i = 0; i < 256; ++i)
      counts[i] += parts[0][i] + parts[1][i] + parts[2][i] + parts[3][i];
  });
}

std::uint16_t entropy_encode_on(const void* values, std::size_t count, Dtype dtype,
                                const EntropyTable& table, std::byte* words) {
  return visit_fields(dtype,
                      [&]<class F>(F) { return encode_block<F>(values, count, table, words); });
}

const char* entropy_decode_on(const std::byte* words, std::size_t size, std::size_t count,
                              Dtype dtype, const EntropyTable& table, void* values) {
  return visit_fields(
      dtype, [&]<class F>(F) { return decode_block<F>(words, size, count, table, values); });
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

TERSOR_DISPATCHED(void, entropy_count,
                  (const void* values, std::size_t count, Dtype dtype, std::uint32_t counts[256]),
                  (values, count, dtype, counts))
TERSOR_DISPATCHED(std::uint16_t, entropy_encode,
                  (const void* values, std::size_t count, Dtype dtype, const EntropyTable& table,
                   std::byte* words),
                  (values, count, dtype, table, words))
TERSOR_DISPATCHED(const char*, entropy_decode,
                  (const std::byte* words, std::size_t size, std::size_t count, Dtype dtype,
                   const EntropyTable& table, void* values),
                  (words, size, count, dtype, table, values))

}  // namespace tersor::kernels
#endif
