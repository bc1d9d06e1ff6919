// A device writes the same bytes as the CPU: frames, residuals, state words and decoded values, for
// all codecs, types, roundings, counts and alignments.

#include "tests/device/pair.h"
#include "tests/support/grid.h"
#include "tests/support/specs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace tersor::test {
namespace {

class SameBytes : public ::testing::TestWithParam<std::string> {
 protected:
  std::string spec() const { return GetParam(); }

  /// Runs `body` on a pair for each type of gradient and residual. On a small grid, each call uses
  /// only one type, in rotation; the first type depends on the codec.
  template <typename Body>
  void for_each_type(const std::vector<std::size_t>& counts, HarnessOptions options, Body&& body) {
    std::vector<std::pair<Dtype, Dtype>> types = {
        {Dtype::kF32, Dtype::kF32}, {Dtype::kBf16, Dtype::kF32}, {Dtype::kF16, Dtype::kF32}};
    if (make_codec(spec())->has_feedback())
      for (std::size_t i = 0; i < 3; ++i) types.emplace_back(types[i].first, Dtype::kBf16);
    if (grid_is_small()) types = {types[iteration_++ % types.size()]};
    for (const auto& [dtype, residual] : types) {
      options.dtype = dtype;
      options.residual_dtype = residual;
      SCOPED_TRACE(std::string(dtype_name(dtype)) + ", residual " +
                   std::string(dtype_name(residual)));
      Pair pair(spec(), counts, options);
      body(pair);
    }
  }

 private:
  std::size_t iteration_ = index_of(GetParam());

  static std::size_t index_of(const std::string& spec) {
    const std::vector<std::string> specs = framed_device_specs();
    return static_cast<std::size_t>(std::ranges::find(specs, spec) - specs.begin());
  }
};

TEST_P(SameBytes, AnyCount) {
  for (const std::size_t count : {1, 2, 3, 31, 127, 128, 129, 255, 256, 257, 511, 512, 513, 7919})
    for_each_type({count}, {}, [&](Pair& pair) {
      SCOPED_TRACE(count);
      pair.expect_same_encode();
      pair.expect_same_decode();
    });
}

TEST_P(SameBytes, AnyStart) {
  for (const std::size_t shift : {1, 2, 3, 5})
    for_each_type({2'000, 1}, {.shift = shift}, [&](Pair& pair) {
      SCOPED_TRACE(shift);
      pair.expect_same_encode();
      pair.expect_same_decode();
    });
}

TEST_P(SameBytes, ManySegments) {
  std::vector<std::size_t> counts;
  for (std::size_t i = 0; i < 40; ++i) counts.push_back(i * 37 % 700);
  for_each_type(counts, {}, [](Pair& pair) {
    pair.expect_same_encode();
    pair.expect_same_decode();
  });
}

/// Units continue across segment boundaries. Frames of int4 with 140,001 values have two groups of
/// rows.
TEST_P(SameBytes, LongRuns) {
  const bool is_short = grid_is_small() && !spec().starts_with("int4");
  Pair pair(spec(), {is_short ? 60'001u : 140'001u, 3, 513, 20'000}, {});
  pair.expect_same_encode();
  pair.expect_same_decode();
  pair.expect_same_decode(2);
  pair.expect_same_reduce(2);
}

/// More segments than a launch accepts, and more than fit into short kernel parameters.
TEST_P(SameBytes, SeveralLaunches) {
  if (!make_codec(spec())->traits().divisible) GTEST_SKIP() << "each segment has its own launches";
  std::vector<std::size_t> counts;
  for (std::size_t i = 0; i < 1'100; ++i) counts.push_back(i % 7);
  Pair pair(spec(), counts, {});
  pair.expect_same_encode();
  pair.expect_same_decode();
  pair.expect_same_reduce(2);
  pair.for_each([](CodecHarness& harness) {
    for (Segment& segment : harness.segments) segment.first_index = 3;  // random bytes one by one
  });
  pair.expect_same_encode();
}

TEST_P(SameBytes, ManyFrames) {
  Pair pair(spec(), {600, 70}, {.contributions = 40});
  pair.expect_same_decode(40);
  pair.expect_same_reduce(40);
}

TEST_P(SameBytes, EmptyInput) {
  for_each_type({}, {}, [](Pair& pair) { pair.expect_same_encode(); });
  for_each_type({0, 0}, {}, [](Pair& pair) {
    pair.expect_same_encode();
    pair.expect_same_decode();
  });
}

TEST_P(SameBytes, ResidualsInPlaceAndFactors) {
  for_each_type({3'000, 77}, {}, [](Pair& pair) {
    pair.for_each([](CodecHarness& harness) {
      harness.share_residuals();
      harness.words.gradient_factor = 0.5f;
      harness.words.residual_factor = 3.0f;
      harness.words.step = 99;
    });
    pair.expect_same_encode();
  });
}

TEST_P(SameBytes, PartsOfAParameter) {
  for (const std::uint64_t first : {512u, 1u, 770u, 0xfffffff1u})
    for_each_type({1'500, 5}, {}, [&](Pair& pair) {
      SCOPED_TRACE(first);
      pair.for_each([&](CodecHarness& harness) {
        for (Segment& segment : harness.segments) segment.first_index = first;
      });
      pair.expect_same_encode();
    });
}

TEST_P(SameBytes, NoChecksum) {
  for_each_type({3'000}, {.checksum = Checksum::kOff}, [](Pair& pair) {
    pair.expect_same_encode();
    pair.expect_same_decode();
  });
}

TEST_P(SameBytes, HardValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> rows = {{0, 0, 0, 0},
                                                {-0.0f, 0, -0.0f, 0},
                                                {1e-45f, -1e-45f, 1e-40f, 0},
                                                {0x1p-100f, 0, 0, 0},
                                                {0x1p-94f, -0x1p-93f, 0, 0},
                                                {3e38f, 1, -1, 1e-3f},
                                                {nan, 1, 2, 3},
                                                {kInfinity, 1, 2, 3},
                                                {-kInfinity, nan, 0, 5},
                                                {65504, 65520, -1, 0},
                                                {1, 1, 1, 1},
                                                {127, -127, 7, -7}};
  for_each_type({700}, {}, [&](Pair& pair) {
    for (const std::vector<float>& row : rows) {
      SCOPED_TRACE(row[0]);
      std::vector<float> values = gaussian(700, 5, 1e-3f);
      for (std::size_t i = 0; i < 300; ++i) values[i] = row[i % row.size()];
      pair.for_each([&](CodecHarness& harness) { harness.set_gradient(values); });
      pair.expect_same_encode();
      pair.expect_same_decode();
    }
  });
}

TEST_P(SameBytes, InactiveSegments) {
  const std::uint32_t no = 0, yes = 1;
  for_each_type({1'000, 30, 600}, {}, [&](Pair& pair) {
    pair.for_each([&](CodecHarness& harness) {
      harness.segments[0].active = &no;
      harness.segments[1].active = &yes;
      harness.segments[2].active = &no;
    });
    pair.expect_same_encode();
  });
}

TEST_P(SameBytes, SeveralFrames) {
  for_each_type({2'100, 9}, {.contributions = 5}, [](Pair& pair) {
    pair.expect_same_decode(3);
    pair.expect_same_reduce(1);
    pair.expect_same_reduce(5);
  });
}

TEST_P(SameBytes, RawValues) {
  for (const std::size_t shift : {0, 1})
    for_each_type({2'100, 9, 0, 300}, {.shift = shift},
                  [](Pair& pair) { pair.expect_same_native(); });
}

TEST_P(SameBytes, WordsOfTheNextStep) {
  for_each_type({600}, {}, [](Pair& pair) { pair.expect_same_words(); });
}

INSTANTIATE_TEST_SUITE_P(Codecs, SameBytes, ::testing::ValuesIn(framed_device_specs()),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace tersor::test
