// Philox4x32-7 compared with the published vectors, and the layout of the random bytes.

#include "kernels/scalar/philox.h"
#include "tests/kernels/reference.h"

#include <gtest/gtest.h>

#include <set>

namespace tersor::kernels {
namespace {

struct Vector {
  PhiloxWords counter;
  std::uint32_t key0, key1;
  PhiloxWords result;
};

// Random123's known answers (kat_vectors, philox4x32 7).
constexpr Vector kVectors[] = {
    {{{0, 0, 0, 0}}, 0, 0, {{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}}},
    {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
     0xffffffff,
     0xffffffff,
     {{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}}},
    {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
     0xa4093822,
     0x299f31d0,
     {{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}}},
};

TEST(Philox, MatchesPublishedVectors) {
  for (const Vector& vector : kVectors) {
    const std::uint64_t key = static_cast<std::uint64_t>(vector.key1) << 32 | vector.key0;
    const PhiloxWords words = philox(vector.counter, key);
    const auto& counter = vector.counter.word;
    const auto by_the_book = reference::philox({counter[0], counter[1], counter[2], counter[3]},
                                               {vector.key0, vector.key1}, 7);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(words.word[i], vector.result.word[i]);
      EXPECT_EQ(by_the_book[i], vector.result.word[i]);
    }
  }
}

TEST(Philox, ElementsUseDistinctNoiseBytes) {
  std::set<std::tuple<std::uint64_t, unsigned, unsigned>> positions;
  for (std::uint64_t element = 0; element < 4096; ++element)
    positions.emplace(noise_counter(element), noise_word(element), noise_byte(element));
  EXPECT_EQ(positions.size(), 4096u);
  EXPECT_EQ(noise_counter(4095), 4096u / 16 - 1) << "sixteen elements share a counter";
}

TEST(Philox, NoiseMatchesReference) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 10000; ++round) {
    const std::uint64_t element = random() >> (random() % 60), key = random();
    const auto step = static_cast<std::uint32_t>(random());
    ASSERT_EQ(noise_of(element, key, step, 3), reference::noise(element, key, step, 3)) << element;
  }
}

TEST(Philox, KeysOfRanksAndPhasesDiffer) {
  EXPECT_EQ(splitmix64(0), 0xe220a8397b1dcdafu) << "SplitMix64's first number from state 0";
  std::set<std::uint64_t> keys;
  for (std::uint32_t rank = 0; rank < 1000; ++rank)
    for (std::uint32_t phase = 0; phase < 2; ++phase) keys.insert(noise_key(42, rank, phase));
  EXPECT_EQ(keys.size(), 2000u);
}

}  // namespace
}  // namespace tersor::kernels
