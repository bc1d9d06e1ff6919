// Unary codes and bit planes of byte lists, for one instruction set.
#if defined(TERSOR_KERNELS_BITS_BITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_BITS_BITS_INL_H_
#undef TERSOR_KERNELS_BITS_BITS_INL_H_
#else
#define TERSOR_KERNELS_BITS_BITS_INL_H_
#endif

#include "kernels/bits/bits.h"
#include "kernels/host/simd-inl.h"

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// Appends the unary codes of `numbers[i] >> shift`. `numbers` has kPackedSlack more readable
/// bytes.
HWY_INLINE void put_quotients(PlaneWriter& plane, const std::uint8_t* numbers, std::size_t count,
                              unsigned shift) {
  std::size_t i = 0;
#if !TERSOR_PORTABLE
  // A lane of 32 bits holds four numbers. The codes of four numbers below 8 fit into 32 bits. Two
  // neighbouring lanes join to a field of 64 bits.
  const hn::CappedTag<std::uint32_t, 16> lanes;
  const hn::Repartition<std::uint64_t, decltype(lanes)> fields;
  constexpr std::size_t kStep = 4 * hn::MaxLanes(lanes);
  const auto bytes = [&](std::uint32_t byte)
                         HWY_ATTR { return hn::Set(lanes, byte * 0x01010101u); };
  const auto valid = bytes(0xffu >> shift), large = bytes(0xf8), one = hn::Set(lanes, 1);
  const auto low = hn::Set(lanes, 31);
  alignas(64) std::uint64_t codes[kStep / 8], widths[kStep / 8];
  for (; i + kStep <= count; i += kStep) {
    const auto loaded = hn::LoadU(lanes, reinterpret_cast<const std::uint32_t*>(numbers + i));
    const auto quotients = hn::And(hn::ShiftRightSame(loaded, static_cast<int>(shift)), valid);
    if (HWY_UNLIKELY(!hn::AllTrue(lanes, hn::Eq(hn::And(quotients, large), hn::Zero(lanes))))) {
      for (std::size_t j = i; j < i + kStep; ++j)
        plane.put_unary(static_cast<std::uint32_t>(numbers[j] >> shift));
      continue;
    }
    // Byte j of a lane is the position of the j-th 1 bit.
    const auto at = hn::Add(hn::Mul(quotients, bytes(1)), hn::Set(lanes, 0x03020100u));
    const auto end = hn::ShiftRight<24>(at);
    const auto code = hn::BitCast(
        fields,
        hn::Or(hn::Or(hn::Shl(one, hn::And(at, low)),
                      hn::Shl(one, hn::And(hn::ShiftRight<8>(at), low))),
               hn::Or(hn::Shl(one, hn::And(hn::ShiftRight<16>(at), low)), hn::Shl(one, end))));
    const auto width = hn::BitCast(fields, hn::Add(end, one));
    const auto first = hn::And(width, hn::Set(fields, 0xff));
    const auto pair = hn::Or(hn::And(code, hn::Set(fields, 0xffffffff)),
                             hn::Shl(hn::ShiftRight<32>(code), first));
    const auto pair_width = hn::Add(first, hn::ShiftRight<32>(width));
    hn::Store(pair, fields, codes);
    hn::Store(pair_width, fields, widths);
    for (std::size_t j = 0; j < kStep / 8; j += 2) {
      const auto all = static_cast<unsigned>(widths[j] + widths[j + 1]);
      if (HWY_LIKELY(all <= kMaxFieldBits)) {
        plane.put(codes[j] | codes[j + 1] << widths[j], all);
      } else {
        plane.put_wide(codes[j], static_cast<unsigned>(widths[j]));
        plane.put_wide(codes[j + 1], static_cast<unsigned>(widths[j + 1]));
      }
    }
  }
#endif
  for (; i < count; ++i) plane.put_unary(static_cast<std::uint32_t>(numbers[i] >> shift));
}

/// The unary codes that end in a byte, and the 0 bits after the last 1 bit.
struct ByteCodeTable {
  std::uint8_t quotients[256][8] = {};  // the number of 0 bits before each 1 bit, and then `zeros`
  std::uint8_t ones[256] = {};
  std::uint8_t zeros[256] = {};
  std::uint8_t shift[256] = {};  // quotients >> shift is `zeros`, also with 0 bits before the byte
};
constexpr ByteCodeTable make_byte_code_table() {
  ByteCodeTable codes;
  for (unsigned byte = 0; byte < 256; ++byte) {
    for (unsigned bit = 0; bit < 8; ++bit)
      if ((byte >> bit & 1) != 0) {
        codes.quotients[byte][codes.ones[byte]++] = codes.zeros[byte];
        codes.zeros[byte] = 0;
      } else {
        ++codes.zeros[byte];
      }
    if (codes.ones[byte] < 8) codes.quotients[byte][codes.ones[byte]] = codes.zeros[byte];
    codes.shift[byte] = static_cast<std::uint8_t>(std::min(8u * codes.ones[byte], 63u));
  }
  return codes;
}
alignas(64) inline constexpr ByteCodeTable kByteCodeTable = make_byte_code_table();

/// As read_quotients, for numbers of one byte, a byte of the plane at a time. `quotients` has
/// kPackedSlack more writable bytes.
HWY_INLINE std::size_t extract_quotients(const std::byte* plane, std::size_t words,
                                         std::size_t count, std::uint8_t* quotients) {
  if (count == 0) return 0;
  constexpr std::size_t kWide = sizeof(std::uint64_t);
  std::size_t done = 0, at = 0;
  std::uint64_t zeros = 0;  // after the last one
  const auto take = [&](unsigned byte) HWY_ATTR {
    std::uint64_t codes;
    std::memcpy(&codes, kByteCodeTable.quotients[byte], sizeof codes);
    codes += zeros;
    std::memcpy(quotients + done, &codes, sizeof codes);
    done += kByteCodeTable.ones[byte];
    zeros = codes >> kByteCodeTable.shift[byte];
  };
  for (;;) {
    // Eight bytes have at most 64 codes, and at most 64 zeros for the next code.
    while (at + kWide <= 4 * words && done + 8 * kWide <= count && zeros < 256 - 8 * kWide) {
      for (const std::size_t end = at + kWide; at < end; ++at)
        take(static_cast<unsigned>(plane[at]));
    }
    if (at == 4 * words || done >= count) break;
    const auto byte = static_cast<unsigned>(plane[at++]);
    if (zeros + kByteCodeTable.quotients[byte][0] > 255) return kInvalidPlane;
    take(byte);
  }
  if (done != count) return kInvalidPlane;
  const std::size_t end = 8 * at - zeros;
  for (; at % 4 != 0; ++at)
    if (plane[at] != std::byte{0}) return kInvalidPlane;
  return end;
}

/// Writes bit `bit` of each number: number i gives bit i mod 8 of byte i / 8. `count` is a multiple
/// of 64. `plane` has kPackedSlack more writable bytes. Returns the number of ones.
HWY_INLINE std::size_t put_plane(const std::uint8_t* numbers, std::size_t count, unsigned bit,
                                 std::uint8_t* plane) {
#if TERSOR_PORTABLE
  for (std::size_t i = 0; i < count; i += 8) {
    unsigned byte = 0;
    for (unsigned j = 0; j < 8; ++j) byte |= (numbers[i + j] >> bit & 1u) << j;
    plane[i / 8] = static_cast<std::uint8_t>(byte);
  }
#else
  const hn::CappedTag<std::uint8_t, 64> lanes;
  const auto mask = hn::Set(lanes, static_cast<std::uint8_t>(1u << bit));
  for (std::size_t i = 0; i < count; i += hn::MaxLanes(lanes))
    hn::StoreMaskBits(lanes, hn::TestBit(hn::LoadU(lanes, numbers + i), mask), plane + i / 8);
#endif
  std::size_t ones = 0;
  for (std::size_t i = 0; i < count / 8; i += sizeof(std::uint64_t)) {
    std::uint64_t word;
    std::memcpy(&word, plane + i, sizeof word);
    ones += static_cast<std::size_t>(std::popcount(word));
  }
  return ones;
}

/// Adds 2^bit to each number whose bit in the plane is 1. `count` is a multiple of 64. `plane` has
/// kPackedSlack more readable bytes.
HWY_INLINE void add_plane(const std::uint8_t* plane, std::size_t count, unsigned bit,
                          std::uint8_t* numbers) {
#if TERSOR_PORTABLE
  for (std::size_t i = 0; i < count; ++i)
    numbers[i] = static_cast<std::uint8_t>(numbers[i] + ((plane[i / 8] >> i % 8 & 1u) << bit));
#else
  const hn::CappedTag<std::uint8_t, 64> lanes;
  const auto value = hn::Set(lanes, static_cast<std::uint8_t>(1u << bit));
  for (std::size_t i = 0; i < count; i += hn::MaxLanes(lanes)) {
    const auto set = hn::IfThenElseZero(hn::LoadMaskBits(lanes, plane + i / 8), value);
    hn::StoreU(hn::Add(hn::LoadU(lanes, numbers + i), set), lanes, numbers + i);
  }
#endif
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_BITS_BITS_INL_H_
