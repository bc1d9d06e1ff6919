// Unary codes and bit planes: fixed bytes, every instruction set against the reference, and planes
// of any bytes.

#include "kernels/bits/bits.h"
#include "kernels/scalar/philox.h"
#include "tests/kernels/bits_functions.h"
#include "tests/kernels/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace tersor::kernels {
namespace {

using reference::ForcedIsa;

/// Runs `body` with each instruction set of this machine.
template <typename Body>
void for_each_bits_isa(const Body& body) {
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(std::string(isa_name(isa)));
    const ForcedIsa forced(isa);
    body();
  }
}

std::uint64_t bits_random(std::uint64_t seed) { return splitmix64(seed * 0x10001 + 5); }

/// Small numbers with a few large ones, followed by slack that must not matter.
std::vector<std::uint8_t> byte_list(std::size_t count, std::uint64_t seed) {
  std::vector<std::uint8_t> numbers(count + kPackedSlack, 0xff);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t random = bits_random(seed + i);
    numbers[i] = static_cast<std::uint8_t>(random % 97 == 0 ? random >> 8
                                                            : std::countr_zero(random >> 8 | 64));
  }
  return numbers;
}

std::vector<std::byte> reference_plane(const std::vector<std::uint8_t>& numbers, std::size_t count,
                                       unsigned shift) {
  std::vector<std::byte> plane(33 * count + 64);
  PlaneWriter writer(plane.data());
  for (std::size_t i = 0; i < count; ++i)
    writer.put_unary(static_cast<std::uint32_t>(numbers[i] >> shift));
  plane.resize(4 * writer.finish());
  return plane;
}

TEST(Bits, FieldsAndCodesMatchFixedBytes) {
  std::byte bytes[64] = {};
  PlaneWriter writer(bytes);
  writer.put(5, 3);                          // 101
  writer.put_unary(0);                       // 1
  writer.put_unary(6);                       // 0000001
  writer.put_wide(0xfedcba9876543210u, 64);  // from bit 11
  writer.put_unary(50);                      // a one at bit 125
  EXPECT_EQ(writer.finish(), 4u);
  const unsigned golden[16] = {0x0d, 0x84, 0x90, 0xa1, 0xb2, 0xc3, 0xd4, 0xe5,
                               0xf6, 0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x20};
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(static_cast<unsigned>(bytes[i]), golden[i]) << i;
  EXPECT_EQ(field_at(bytes, 0, 3), 5u);
  EXPECT_EQ(field_at(bytes, 11, 56), 0xdcba9876543210u);
  EXPECT_EQ(wide_field_at(bytes, 11, 64), 0xfedcba9876543210u);
}

TEST(Bits, QuotientsMatchFixedBytes) {
  for_each_bits_isa([] {
    std::vector<std::uint8_t> numbers = {0, 1, 2, 3, 9, 0, 0, 31};
    numbers.resize(8 + kPackedSlack);
    std::byte plane[128] = {};
    EXPECT_EQ(pack_quotients(numbers.data(), 8, 0, plane), 2u);
    const unsigned golden[8] = {0x25, 0x02, 0x38, 0x00, 0x00, 0x00, 0x20, 0x00};
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(static_cast<unsigned>(plane[i]), golden[i]) << i;
  });
}

void expect_same_planes(const std::vector<std::uint8_t>& numbers, std::size_t count,
                        unsigned shift) {
  const std::vector<std::byte> expected = reference_plane(numbers, count, shift);
  std::vector<std::byte> plane(expected.size() + kPackedSlack);
  ASSERT_EQ(4 * pack_quotients(numbers.data(), count, shift, plane.data()), expected.size());
  plane.resize(expected.size());
  ASSERT_EQ(plane, expected) << count << " " << shift;
  std::vector<std::uint8_t> found(count + kPackedSlack), wanted(count);
  const std::size_t words = expected.size() / 4;
  const std::size_t end = read_quotients(plane.data(), words, count, wanted.data());
  ASSERT_EQ(unpack_quotients(plane.data(), words, count, found.data()), end);
  found.resize(count);
  ASSERT_EQ(found, wanted);
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(found[i], numbers[i] >> shift);
}

TEST(Bits, InstructionSetsMatchReferencePlanes) {
  for_each_bits_isa([] {
    for (const std::size_t count : {0, 1, 5, 63, 64, 65, 255, 1000, 4096})
      for (unsigned shift = 0; shift <= 4; ++shift)
        expect_same_planes(byte_list(count, count + shift), count, shift);
  });
}

TEST(Bits, ConsecutiveLongCodes) {
  for_each_bits_isa([] {
    for (const unsigned least : {2, 4, 6, 100, 180, 247})
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        std::vector<std::uint8_t> numbers = byte_list(500, seed);
        for (std::size_t i = 0; i < 500; ++i)
          if (bits_random(i) % 16 != 0 || least < 8)
            numbers[i] = static_cast<std::uint8_t>(least + numbers[i] % (least < 8 ? 2 : 9));
        expect_same_planes(numbers, 500, 0);
      }
  });
}

TEST(Bits, BitPlanesRoundTrip) {
  for_each_bits_isa([] {
    for (const std::size_t count : {64, 128, 4096}) {
      const std::vector<std::uint8_t> numbers = byte_list(count, 7 * count);
      std::vector<std::uint8_t> sum(count);
      for (unsigned bit = 0; bit < 8; ++bit) {
        std::vector<std::uint8_t> plane(count / 8 + kPackedSlack);
        std::size_t ones = 0;
        for (std::size_t i = 0; i < count; ++i) ones += numbers[i] >> bit & 1u;
        EXPECT_EQ(pack_plane(numbers.data(), count, bit, plane.data()), ones);
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(plane[i / 8] >> i % 8 & 1u, numbers[i] >> bit & 1u) << i;
        unpack_plane(plane.data(), count, bit, sum.data());
      }
      EXPECT_TRUE(std::equal(sum.begin(), sum.end(), numbers.begin()));
    }
  });
}

TEST(Bits, RejectsCodesWithMoreThan255Zeros) {
  for_each_bits_isa([] {
    for (std::size_t words = 7; words < 20; ++words)
      for (unsigned bit = 0; bit < 32; ++bit) {
        std::vector<std::uint32_t> plane(words + 20, ~0u);
        for (std::size_t i = 0; i < words; ++i) plane[9 + i] = 0;
        plane[9 + words] = ~0u << bit;
        const std::size_t zeros = 32 * words + bit, count = 32 * plane.size() - zeros;
        std::vector<std::uint8_t> found(count + kPackedSlack);
        const auto* bytes = reinterpret_cast<const std::byte*>(plane.data());
        const std::size_t end = unpack_quotients(bytes, plane.size(), count, found.data());
        ASSERT_EQ(end, zeros > 255 ? kInvalidPlane : 32 * plane.size()) << zeros;
        if (zeros <= 255) ASSERT_EQ(found[9 * 32], zeros);
      }
  });
}

TEST(Bits, RejectsBrokenPlanes) {
  for_each_bits_isa([] {
    std::uint8_t numbers[8 + kPackedSlack];
    const auto read = [&](std::vector<std::uint32_t> words, std::size_t count) {
      const auto* plane = reinterpret_cast<const std::byte*>(words.data());
      const std::size_t end = unpack_quotients(plane, words.size(), count, numbers);
      EXPECT_EQ(read_quotients(plane, words.size(), count, numbers), end);
      return end;
    };
    EXPECT_EQ(read({0b1011}, 3), 4u);
    EXPECT_EQ(read({0b1011}, 4), kInvalidPlane) << "too few";
    EXPECT_EQ(read({0b1011}, 2), kInvalidPlane) << "a one after the last code";
    EXPECT_EQ(read({0x80000001}, 1), kInvalidPlane) << "a one in the padding";
    EXPECT_EQ(read({1, 1}, 1), 1u) << "later words belong to the caller";
    EXPECT_EQ(read({0, 0, 0, 0, 0, 0, 0, 0x80000000}, 1), 256u) << "255";
    EXPECT_EQ(read({0, 0, 0, 0, 0, 0, 0, 0, 1}, 1), kInvalidPlane) << "256";
    EXPECT_EQ(read({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80}, 1), kInvalidPlane) << "far more";
    EXPECT_EQ(read({}, 1), kInvalidPlane);
    EXPECT_EQ(read({}, 0), 0u);
  });
}

TEST(Bits, ArbitraryPlanesMatchReferenceWithinBounds) {
  for_each_bits_isa([] {
    for (std::uint64_t seed = 0; seed < 3000; ++seed) {
      const std::size_t words = bits_random(seed) % 12, count = bits_random(~seed) % 200;
      // On the heap, at exact sizes: sanitizers see a read or a write too far.
      std::vector<std::uint32_t> plane(words);
      for (std::size_t i = 0; i < words; ++i)
        plane[i] =
            static_cast<std::uint32_t>(bits_random(seed * 64 + i) & bits_random(seed * 77 + i));
      std::vector<std::uint8_t> found(count + kPackedSlack, 0xa5), wanted(count);
      const auto* bytes = reinterpret_cast<const std::byte*>(plane.data());
      const std::size_t end = unpack_quotients(bytes, words, count, found.data());
      ASSERT_EQ(read_quotients(bytes, words, count, wanted.data()), end) << seed;
      if (end != kInvalidPlane) {
        found.resize(count);
        ASSERT_EQ(found, wanted) << seed;
      }
    }
  });
}

TEST(Bits, BestWidthIsOptimal) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::vector<std::uint32_t> numbers(1 + bits_random(seed) % 50);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] =
          static_cast<std::uint32_t>(bits_random(seed * 100 + i) >> (33 + bits_random(seed) % 31));
    const auto bits = [&](unsigned width) {
      std::uint64_t all = numbers.size() * width;
      for (const std::uint32_t number : numbers) all += number >> width;
      return all;
    };
    unsigned best = 0;
    for (unsigned width = 1; width <= 31; ++width)
      if (bits(width) < bits(best)) best = width;
    const Width found = best_width(numbers.data(), numbers.size(), 31);
    EXPECT_EQ(found.low_bits, best) << seed;
    EXPECT_EQ(found.bits, bits(best) + numbers.size()) << seed;
    EXPECT_EQ(best_width(numbers.data(), numbers.size(), 3).low_bits, std::min(best, 3u)) << seed;
  }
  EXPECT_EQ(best_width(static_cast<const std::uint8_t*>(nullptr), 0, 13).bits, 0u);
  const std::vector<std::uint64_t> huge(9, ~std::uint64_t{0});
  EXPECT_EQ(best_width(huge.data(), huge.size(), 62).low_bits, 62u) << "sums beyond 64 bits";
}

}  // namespace
}  // namespace tersor::kernels
