// The checksum under every instruction set, and what its weights and its base promise.

#include "kernels/host/checksum.h"

#include <tersor/isa.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

namespace tersor::kernels {
namespace {

constexpr std::uint64_t kMostGroups = std::uint64_t{1} << 21;  // of a frame of 8 GiB
constexpr unsigned kWordBits = 32;

std::uint64_t power(std::uint64_t number, std::uint64_t exponent) {
  std::uint64_t product = 1;
  for (; exponent != 0; exponent /= 2, number = multiply_checksums(number, number))
    if (exponent % 2 != 0) product = multiply_checksums(product, number);
  return product;
}

std::uint64_t inverse(std::uint64_t number) { return power(number, kChecksumPrime - 2); }
std::uint64_t negative(std::uint64_t number) { return number == 0 ? 0 : kChecksumPrime - number; }

/// What bit 0 of a word adds.
std::uint64_t factor_of(std::uint64_t word) {
  const std::uint64_t weight = checksum_of(kChecksumNumbers.weight[word % kChecksumGroup]);
  return multiply_checksums(weight, kChecksumNumbers.power_of(word / kChecksumGroup));
}

/// What a bit that turns from 0 to 1 adds, and from 1 to 0.
std::uint64_t change_of(std::uint64_t word, unsigned bit, bool falls) {
  const std::uint64_t up = multiply_checksums(factor_of(word), std::uint64_t{1} << bit);
  return falls ? negative(up) : up;
}

/// The class of a number modulo all ±2^n, of which there are 122: equal for numbers that differ in
/// such a factor alone.
std::uint64_t class_of(std::uint64_t number) { return power(number, 122); }

std::uint64_t by_the_book(const std::vector<std::int32_t>& words, std::uint64_t first) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < words.size(); ++i)
    sum = add_checksums(sum, multiply_checksums(checksum_of(words[i]), factor_of(first + i)));
  return sum;
}

class ChecksumOnIsa : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { force_isa(GetParam()); }
  void TearDown() override { force_isa(std::nullopt); }

  std::vector<std::int32_t> random_words(std::size_t count) {
    std::vector<std::int32_t> words(count);
    for (auto& word : words) word = static_cast<std::int32_t>(random_());
    return words;
  }

  std::mt19937_64 random_{1};
};

TEST_P(ChecksumOnIsa, MayBeSummedInPieces) {
  for (const std::size_t count : {0, 1, 2, 15, 16, 17, 63, 1000, 4099}) {
    const auto words = random_words(count);
    for (const std::uint64_t first : {0ull, 13ull, 1023ull, (1ull << 31) - 5, (1ull << 40) + 3}) {
      const std::uint64_t whole = checksum(words.data(), count, first);
      EXPECT_EQ(whole, by_the_book(words, first)) << count << " from " << first;
      for (const std::size_t cut : {count / 2, count / 3, count})
        EXPECT_EQ(add_checksums(checksum(words.data(), cut, first),
                                checksum(words.data() + cut, count - cut, first + cut)),
                  whole);
    }
  }
}

TEST_P(ChecksumOnIsa, TheLargestWordsDoNotOverflow) {
  for (const std::int32_t word : {std::int32_t{-0x7fffffff - 1}, std::int32_t{0x7fffffff}, -1}) {
    const std::vector<std::int32_t> words(5000, word);
    EXPECT_EQ(checksum(words.data(), words.size(), 7), by_the_book(words, 7)) << word;
    // All products of one sign.
    auto turned = words;
    for (std::size_t i = 0; i < turned.size(); ++i)
      if (kChecksumNumbers.weight[(7 + i) % kChecksumGroup] < 0) turned[i] = ~word;
    EXPECT_EQ(checksum(turned.data(), turned.size(), 7), by_the_book(turned, 7)) << word;
  }
}

TEST_P(ChecksumOnIsa, SeesWordsSwappedZeroedAndShifted) {
  const auto sound = random_words(5000);
  const auto sum_of = [](const auto& words) { return checksum(words.data(), words.size(), 16); };
  const std::uint64_t expected = sum_of(sound);
  for (int round = 0; round < 200; ++round) {
    const std::size_t first = random_() % 2000, second = 2000 + random_() % 2000;
    const std::size_t count = 1 + random_() % 1000;
    auto words = sound;
    std::swap_ranges(words.begin() + first, words.begin() + std::min(first + count, second),
                     words.begin() + second);
    EXPECT_NE(sum_of(words), expected) << "swapped " << first << ", " << second << ": " << count;
    words = sound;
    std::fill_n(words.begin() + first, count, 0);
    EXPECT_NE(sum_of(words), expected) << "zeroed " << first << ": " << count;
    words = sound;
    std::rotate(words.begin() + first, words.begin() + first + 1,
                words.begin() + first + 1 + count);
    EXPECT_NE(sum_of(words), expected) << "shifted " << first << ": " << count;
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, ChecksumOnIsa, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

// Two flipped bits change the sum by ±2^a · f ± 2^b · g, f and g being their words' factors: by
// nothing only where f and g are of one class, or one and the same number and a = b.

TEST(Checksum, NoTwoFlippedBitsOfAGroupCancel) {
  std::unordered_set<std::uint64_t> classes;
  for (std::size_t i = 0; i < kChecksumGroup; ++i) classes.insert(class_of(factor_of(i)));
  EXPECT_EQ(classes.size(), kChecksumGroup);
  EXPECT_EQ(classes.count(0), 0u);
}

TEST(Checksum, NoTwoFlippedBitsOfSeveralGroupsCancel) {
  std::vector<std::uint64_t> classes;
  for (std::size_t i = 0; i < kChecksumGroup; ++i) classes.push_back(class_of(factor_of(i)));
  std::unordered_set<std::uint64_t> ratios(2 * kChecksumGroup * kChecksumGroup);
  for (const std::uint64_t one : classes) {
    const std::uint64_t reciprocal = inverse(one);
    for (const std::uint64_t other : classes) ratios.insert(multiply_checksums(other, reciprocal));
  }
  const std::uint64_t base = class_of(kChecksumNumbers.power_of(1));
  std::uint64_t distance = 1;
  for (std::uint64_t groups = 1; groups < kMostGroups; ++groups) {
    distance = multiply_checksums(distance, base);
    ASSERT_EQ(ratios.count(distance), 0u) << groups << " groups apart";
  }
}

TEST(Checksum, NoFlippedBitCancelsWithOneOfTheFieldItself) {
  std::unordered_set<std::uint64_t> reciprocals;
  for (std::size_t i = 0; i < kChecksumGroup; ++i)
    reciprocals.insert(inverse(class_of(factor_of(i))));
  const std::uint64_t base = class_of(kChecksumNumbers.power_of(1));
  std::uint64_t group = 1;
  for (std::uint64_t i = 0; i < kMostGroups; ++i, group = multiply_checksums(group, base))
    ASSERT_EQ(reciprocals.count(group), 0u) << "group " << i;
}

/// The changes of a window's bits, to be asked for a third one.
class Changes {
 public:
  void add(std::uint64_t change) {
    std::size_t slot = slot_of(change);
    while (slots_[slot] != 0) slot = (slot + 1) % kSlots;
    slots_[slot] = change;
    changes_.push_back(change);
  }

  bool holds(std::uint64_t change) const {
    for (std::size_t slot = slot_of(change); slots_[slot] != 0; slot = (slot + 1) % kSlots)
      if (slots_[slot] == change) return true;
    return false;
  }

  const std::vector<std::uint64_t>& list() const { return changes_; }

 private:
  static constexpr std::size_t kSlots = 1 << 14;

  static std::size_t slot_of(std::uint64_t change) {
    return change * 0x9e3779b97f4a7c15u >> (64 - 14);
  }

  std::vector<std::uint64_t> slots_ = std::vector<std::uint64_t>(kSlots);
  std::vector<std::uint64_t> changes_;
};

/// How many triples of flipped bits in words [first, first + 64) cancel, one of them in word
/// `first`.
std::size_t cancelling_triples(std::uint64_t first) {
  Changes window;
  for (std::uint64_t word = first; word < first + 64; ++word)
    for (unsigned bit = 0; bit < kWordBits; ++bit) window.add(change_of(word, bit, false));
  std::size_t cancelling = 0;
  for (unsigned bit = 0; bit < kWordBits; ++bit) {
    const std::uint64_t one = window.list()[bit];
    for (std::size_t i = bit + 1; i < window.list().size(); ++i) {
      const std::uint64_t two = window.list()[i];
      for (const std::uint64_t sum : {add_checksums(one, two), add_checksums(one, negative(two))})
        for (const std::uint64_t third : {sum, negative(sum)})
          // Twice the same bit is no triple: 2^a + 2^a = 2^(a + 1).
          if (third != one && third != two && window.holds(third)) ++cancelling;
    }
  }
  return cancelling;
}

TEST(Checksum, NoThreeFlippedBitsWithin64WordsCancel) {
  // In one word 2^a + 2^a+... of three different bits never cancels; all others are looked up.
  for (std::uint64_t first = 0; first < kChecksumGroup + 64; ++first)
    ASSERT_EQ(cancelling_triples(first), 0u) << "words " << first << " to " << first + 63;
}

/// Ten million; TERSOR_CHECKSUM_TRIPLES says another number, as the test labelled long does.
TEST(Checksum, RandomTriplesAreFound) {
  const char* asked = std::getenv("TERSOR_CHECKSUM_TRIPLES");
  const std::uint64_t triples = asked == nullptr ? 10'000'000 : std::strtoull(asked, nullptr, 10);
  std::uint64_t state = 3;
  const auto next = [&state] { return splitmix64(state += kSplitmixStep); };
  for (std::uint64_t i = 0; i < triples; ++i) {
    std::uint64_t sum = 0;
    for (int flip = 0; flip < 3; ++flip) {
      const std::uint64_t random = next();
      sum = add_checksums(sum, change_of(random >> 33, random % kWordBits, random >> 5 & 1));
    }
    ASSERT_NE(sum, 0u) << "triple " << i;
  }
}

/// Three flips that cancelled in format version 1, whose weights were a ramp.
TEST(Checksum, ThreeFlipsThatARampMissesAreFound) {
  std::array<float, 40> ones;
  ones.fill(1.0f);
  std::array<std::uint32_t, 56> frame = {};
  std::memcpy(frame.data() + 16, ones.data(), sizeof ones);
  const std::uint64_t sound = checksum(frame.data(), frame.size(), 0);
  frame[16] ^= 1u << 21 | 1u << 23;
  frame[49] ^= 1u << 21;
  EXPECT_NE(checksum(frame.data(), frame.size(), 0), sound);
}

}  // namespace
}  // namespace tersor::kernels
