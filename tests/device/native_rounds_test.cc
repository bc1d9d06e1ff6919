// Native-only codecs give the same bits on a device and on the CPU, for all types, counts and
// alignments. Compared are raw values of all rounds, residuals, state words and decoded values.

#include "tests/device/hard_values.h"
#include "tests/device/rounds_pair.h"
#include "tests/support/specs.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace tersor::test {
namespace {

class NativeRoundsOn : public ::testing::TestWithParam<std::string> {
 protected:
  std::string spec() const { return GetParam(); }

  void for_each_type(const std::vector<std::size_t>& counts, const HarnessOptions& options,
                     const std::function<void(RoundsPair&)>& body) {
    test::for_each_type(spec(), counts, options, body);
  }
};

TEST_P(NativeRoundsOn, AnyCount) {
  for (const std::size_t count : {1, 2, 31, 128, 129, 255, 256, 257, 511, 512, 513, 2919})
    for_each_type({count}, {}, [&](RoundsPair& pair) {
      SCOPED_TRACE(count);
      pair.expect_same();
    });
}

TEST_P(NativeRoundsOn, AnyStart) {
  for (const std::size_t shift : {1, 2, 3, 5})
    for_each_type({1'500, 1, 7}, {.shift = shift}, [&](RoundsPair& pair) {
      SCOPED_TRACE(shift);
      pair.expect_same({.shift = shift});
    });
}

TEST_P(NativeRoundsOn, FactorsAndModes) {
  for_each_type({1'030, 77}, {}, [](RoundsPair& pair) {
    pair.for_each([](CodecHarness& rank) {
      rank.share_residuals();
      rank.words = {.step = 99, .gradient_factor = 0.5f, .residual_factor = 3.0f};
      for (std::size_t i = 0; i < rank.segments.size(); ++i)
        rank.set_output(gaussian(rank.segments[i].count, 3 + i), i);
    });
    pair.expect_same({.encode_factor = 1.0f / 3, .decode_factor = 0.7f, .mode = DecodeMode::kAdd});
  });
}

/// More segments than a launch accepts, and more than fit into short kernel parameters.
TEST_P(NativeRoundsOn, SeveralLaunches) {
  std::vector<std::size_t> counts;
  for (std::size_t i = 0; i < 900; ++i) counts.push_back(i == 450 ? 1'000 : i % 7);
  RoundsPair pair(spec(), counts, {});
  pair.expect_same();
  pair.for_each([](CodecHarness& rank) {
    for (Segment& segment : rank.segments) segment.first_index = 3;  // random bytes one by one
  });
  pair.expect_same();
}

TEST_P(NativeRoundsOn, EmptyInput) {
  for_each_type({}, {}, [](RoundsPair& pair) { pair.expect_same(); });
  for_each_type({0, 0}, {}, [](RoundsPair& pair) { pair.expect_same(); });
}

TEST_P(NativeRoundsOn, PartsOfAParameter) {
  for (const std::uint64_t first : {512u, 1u, 0xfffffff1u})
    for_each_type({700, 5}, {}, [&](RoundsPair& pair) {
      SCOPED_TRACE(first);
      pair.for_each([&](CodecHarness& rank) {
        for (Segment& segment : rank.segments) segment.first_index = first;
      });
      pair.expect_same();
    });
}

TEST_P(NativeRoundsOn, InactiveSegments) {
  const std::uint32_t no = 0, yes = 1;
  for_each_type({1'000, 30, 600}, {}, [&](RoundsPair& pair) {
    pair.for_each([&](CodecHarness& rank) {
      rank.segments[0].active = &no;
      rank.segments[1].active = &yes;
    });
    pair.device.ranks[1].segments[0].active = pair.host.ranks[1].segments[0].active = &yes;
    pair.expect_same();
  });
}

TEST_P(NativeRoundsOn, HardValues) {
  for (const ValueKind& kind : hard_values())
    for_each_type({700}, {}, [&](RoundsPair& pair) {
      SCOPED_TRACE(kind.name);
      pair.for_each([&](CodecHarness& rank) { rank.set_gradient(values_of(kind, 700, 4)); });
      pair.expect_same({.encode_factor = 0.3f});
    });
}

TEST_P(NativeRoundsOn, WordsOfTheNextStep) { expect_same_next_words(spec(), 600, {}); }

INSTANTIATE_TEST_SUITE_P(Codecs, NativeRoundsOn, ::testing::ValuesIn(native_specs()),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace tersor::test
