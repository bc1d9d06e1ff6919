// The checksum with every instruction set, and the guarantees of its weights and its base.

#include "kernels/host/checksum.h"

#include <tersor/isa.h>
#include <tersor/wire.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

namespace tersor::kernels {
namespace {

constexpr std::uint64_t kMostColumns = std::uint64_t{1} << 21;  // of a frame of 8 GiB
constexpr unsigned kWordBits = 32;

std::uint64_t power(std::uint64_t number, std::uint64_t exponent) {
  std::uint64_t product = 1;
  for (; exponent != 0; exponent /= 2, number = multiply_checksums(number, number))
    if (exponent % 2 != 0) product = multiply_checksums(product, number);
  return product;
}

std::uint64_t inverse(std::uint64_t number) { return power(number, kChecksumPrime - 2); }
std::uint64_t negative(std::uint64_t number) { return number == 0 ? 0 : kChecksumPrime - number; }

/// The contribution of bit 0 of a word.
std::uint64_t factor_of(std::uint64_t word) {
  const std::uint64_t weight = checksum_of(kChecksumNumbers.weight[checksum_row(word)]);
  return multiply_checksums(weight, kChecksumNumbers.power_of(checksum_column(word)));
}

/// The change of the sum after bit `bit` of a word rises (0 to 1) or falls (1 to 0).
std::uint64_t change_of(std::uint64_t word, unsigned bit, bool falls) {
  const std::uint64_t up = multiply_checksums(factor_of(word), std::uint64_t{1} << bit);
  return falls ? negative(up) : up;
}

/// Equal for a change and its negative.
std::uint64_t without_sign(std::uint64_t change) { return std::min(change, negative(change)); }

/// The class of a number modulo the 122 numbers ±2^n. Two numbers are in the same class if their
/// quotient is such a factor.
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

TEST_P(ChecksumOnIsa, PiecesSumToTheWhole) {
  for (const std::size_t count : {0, 1, 2, 15, 16, 17, 63, 1000, 4099, 40'000}) {
    const auto words = random_words(count);
    for (const std::uint64_t first : {0ull, 13ull, 16'383ull, (1ull << 31) - 5, (1ull << 40) + 3}) {
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
    const std::vector<std::int32_t> words(70'000, word);
    EXPECT_EQ(checksum(words.data(), words.size(), 7), by_the_book(words, 7)) << word;
    // All products have the same sign.
    auto turned = words;
    for (std::size_t i = 0; i < turned.size(); ++i)
      if (kChecksumNumbers.weight[checksum_row(7 + i)] < 0) turned[i] = ~word;
    EXPECT_EQ(checksum(turned.data(), turned.size(), 7), by_the_book(turned, 7)) << word;
  }
}

TEST_P(ChecksumOnIsa, FirstRowMayBeStoredSeparately) {
  for (const std::size_t count : {0, 1, 4, 1000}) {
    const auto row = random_words(kChecksumColumns), words = random_words(count);
    EXPECT_EQ(checksum_with_first_row(row.data(), words.data(), count),
              add_checksums(by_the_book(row, 0), by_the_book(words, kChecksumColumns)));
  }
}

TEST_P(ChecksumOnIsa, DetectsSwappedFilledShiftedAndCopiedWords) {
  const auto sound = random_words(60'000);  // of several groups
  const std::uint64_t expected = checksum(sound.data(), sound.size(), 16);
  const auto expect_seen = [&](const std::vector<std::int32_t>& words, const char* how) {
    EXPECT_TRUE(words == sound || checksum(words.data(), words.size(), 16) != expected) << how;
  };
  for (int round = 0; round < 200; ++round) {
    const std::size_t count = 1 + random_() % 8000;
    const auto first = static_cast<std::ptrdiff_t>(random_() % 20'000);
    const auto second = static_cast<std::ptrdiff_t>(30'000 + random_() % 20'000);
    const auto end = first + static_cast<std::ptrdiff_t>(count);
    auto words = sound;
    std::swap_ranges(words.begin() + first, words.begin() + end, words.begin() + second);
    expect_seen(words, "swapped");
    words = sound;
    std::fill(words.begin() + first, words.begin() + end, -(round % 2));
    expect_seen(words, "filled with one bit");
    words = sound;
    std::rotate(words.begin() + first, words.begin() + first + 1 + round % 16,
                words.begin() + end + 16);
    expect_seen(words, "shifted");
    words = sound;
    std::copy_n(sound.begin() + first, count, words.begin() + second);
    expect_seen(words, "copied");
  }
}

/// A bit flipped, set or cleared in every 2^n-th word.
TEST_P(ChecksumOnIsa, DetectsPeriodicBitChanges) {
  const auto sound = random_words(60'000);
  const std::uint64_t expected = checksum(sound.data(), sound.size(), 16);
  for (std::size_t period = 1; period <= 32'768; period *= 2)
    for (unsigned bit = 0; bit < kWordBits; ++bit) {
      const auto mask = static_cast<std::int32_t>(1u << bit);
      auto flipped = sound, set = sound, cleared = sound;
      for (std::size_t i = bit % 3 * 8; i < sound.size(); i += period) {
        flipped[i] ^= mask;
        set[i] |= mask;
        cleared[i] &= ~mask;
      }
      for (const auto& words : {flipped, set, cleared})
        ASSERT_TRUE(words == sound || checksum(words.data(), words.size(), 16) != expected)
            << bit << " of " << period;
    }
}

INSTANTIATE_TEST_SUITE_P(Cpu, ChecksumOnIsa, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

/// A flip changes the row's sum, to which the other rows are added.
TEST(Checksum, EveryFlippedBitOfAGroupIsFound) {
  std::array<std::uint32_t, kChecksumColumns> row;
  for (std::uint64_t first = 0; first < kChecksumGroup; first += row.size()) {
    for (std::size_t i = 0; i < row.size(); ++i)
      row[i] = static_cast<std::uint32_t>(splitmix64(first + i));
    const std::uint64_t sound = checksum(row.data(), row.size(), first);
    for (std::uint32_t& word : row)
      for (unsigned bit = 0; bit < kWordBits; ++bit) {
        word ^= 1u << bit;
        ASSERT_NE(checksum(row.data(), row.size(), first), sound) << first << ", bit " << bit;
        word ^= 1u << bit;
      }
  }
}

/// All pairs within 64 KiB: the number of distinct changes, ignoring signs, equals the number of
/// bits.
TEST(Checksum, NoTwoFlippedBitsOfAGroupCancel) {
  std::vector<std::uint64_t> changes;
  for (std::uint64_t word = 0; word < kChecksumGroup; ++word)
    for (unsigned bit = 0; bit < kWordBits; ++bit)
      changes.push_back(without_sign(change_of(word, bit, false)));
  std::ranges::sort(changes);
  EXPECT_NE(changes.front(), 0u);
  EXPECT_EQ(std::ranges::adjacent_find(changes), changes.end());
}

// Two flipped bits change the sum by ±2^a · f ± 2^b · g, with the factors f and g of their words.
// The change is 0 only if f and g are in the same class, or if both are the same factor and a = b.

std::vector<std::uint64_t> classes_of_rows() {
  std::vector<std::uint64_t> classes;
  for (const std::int32_t weight : kChecksumNumbers.weight)
    classes.push_back(class_of(checksum_of(weight)));
  return classes;
}

TEST(Checksum, NoTwoFlippedBitsOfSeveralGroupsCancel) {
  const std::vector<std::uint64_t> classes = classes_of_rows();
  // All rows of a column have different classes.
  EXPECT_EQ(std::unordered_set<std::uint64_t>(classes.begin(), classes.end()).size(),
            kChecksumRows);
  std::unordered_set<std::uint64_t> ratios(2 * kChecksumRows * kChecksumRows);
  for (const std::uint64_t one : classes) {
    const std::uint64_t reciprocal = inverse(one);
    for (const std::uint64_t other : classes) ratios.insert(multiply_checksums(other, reciprocal));
  }
  const std::uint64_t base = class_of(kChecksumNumbers.power_of(1));
  std::uint64_t distance = 1;
  for (std::uint64_t columns = 1; columns < kMostColumns; ++columns) {
    distance = multiply_checksums(distance, base);
    ASSERT_EQ(ratios.count(distance), 0u) << columns << " columns apart";
  }
}

TEST(Checksum, NoFlippedBitCancelsWithOneOfTheFieldItself) {
  std::unordered_set<std::uint64_t> reciprocals;
  for (const std::uint64_t one : classes_of_rows()) reciprocals.insert(inverse(one));
  const std::uint64_t base = class_of(kChecksumNumbers.power_of(1));
  std::uint64_t column = 1;
  for (std::uint64_t i = 0; i < kMostColumns; ++i, column = multiply_checksums(column, base))
    ASSERT_EQ(reciprocals.count(column), 0u) << "column " << i;
}

/// The changes of the bits in a window, for lookups of a third bit.
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

/// The number of cancelling triples of flipped bits in words [first, first + 64), with at least one
/// bit in word `first`.
std::size_t cancelling_triples(std::uint64_t first) {
  Changes window;
  for (std::uint64_t word = first; word < first + 64; ++word)
    for (unsigned bit = 0; bit < kWordBits; ++bit)
      window.add(without_sign(change_of(word, bit, false)));
  std::size_t cancelling = 0;
  for (unsigned bit = 0; bit < kWordBits; ++bit) {
    const std::uint64_t one = window.list()[bit];
    for (std::size_t i = bit + 1; i < window.list().size(); ++i) {
      const std::uint64_t two = window.list()[i];
      for (const std::uint64_t sum : {add_checksums(one, two), add_checksums(one, negative(two))})
        // A bit counted twice is no triple: 2^a + 2^a = 2^(a + 1).
        if (const std::uint64_t third = without_sign(sum);
            third != one && third != two && window.holds(third))
          ++cancelling;
    }
  }
  return cancelling;
}

/// The number requested by the long test; null in other tests.
const char* asked_triples() { return std::getenv("TERSOR_CHECKSUM_TRIPLES"); }

/// Covers one group, and thereby all groups: their changes are the same, times a power of the base.
/// Three different bits of one word never cancel. Tests every 17th window, or all windows in the
/// long test.
TEST(Checksum, NoThreeFlippedBitsWithin64WordsCancel) {
  const std::uint64_t step = asked_triples() == nullptr ? kChecksumColumns + 1 : 1;
  for (std::uint64_t first = 0; first < kChecksumGroup; first += step)
    ASSERT_EQ(cancelling_triples(first), 0u) << "words " << first << " to " << first + 63;
}

/// Four flips of the same bit at the corners of rectangles of rows, columns and groups.
TEST(Checksum, RectanglesOfFlippedBitsAreFound) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 200'000; ++round) {
    const std::uint64_t steps[] = {1, kChecksumColumns, kChecksumColumns * (1 + random() % 1000),
                                   kChecksumGroup, kChecksumGroup * (1 + random() % 100'000)};
    const std::uint64_t one = random() % kChecksumGroup;
    const std::uint64_t right = steps[random() % 5], down = steps[random() % 5];
    if (right == down) continue;
    const unsigned bit = round % 3 == 0 ? kWordBits - 1 : random() % kWordBits;
    const auto change = [&](std::uint64_t word) { return change_of(word, bit, false); };
    const std::uint64_t corners = add_checksums(change(one), change(one + right + down));
    const std::uint64_t others = add_checksums(change(one + right), change(one + down));
    ASSERT_NE(corners, others) << one << " + " << right << ", " << down;
    ASSERT_NE(add_checksums(corners, others), 0u) << one << " + " << right << ", " << down;
  }
}

/// Zeros after the end do not change the sum, but the header contains the payload's length.
TEST(Checksum, AppendedZerosAreDetectedByLength) {
  constexpr std::size_t kWords = 1000, kLength = offsetof(FrameHeader, payload_bytes) / 4;
  std::vector<std::uint32_t> frame(kWords, 5);
  frame[kLength] = 4 * (kWords - kChecksumColumns);
  const std::uint64_t sound = checksum(frame.data(), frame.size(), 0);
  for (std::size_t more = 4; more < 4000; more += 4) {
    frame.resize(kWords + more, 0);
    EXPECT_EQ(checksum(frame.data(), frame.size(), 0), sound) << more;
    frame[kLength] += static_cast<std::uint32_t>(4 * more);
    EXPECT_NE(checksum(frame.data(), frame.size(), 0), sound) << more;
    frame[kLength] -= static_cast<std::uint32_t>(4 * more);
  }
}

/// Ten million triples, or the requested number.
TEST(Checksum, RandomTriplesAreFound) {
  const char* asked = asked_triples();
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

/// Three flips cancelling in format version 1, which used linearly increasing weights.
TEST(Checksum, DetectsTripleFlipMissedByLinearWeights) {
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
