// Calls of native-only codecs: changes per round, refused calls, and bitwise independence of
// threads, alignment and instruction sets.

#include "tests/support/allocations.h"
#include "tests/support/codec_conformance.h"
#include "tests/support/grid.h"
#include "tests/support/native_rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

namespace tersor::test {
namespace {

/// A codec and the tested segments.
struct Native {
  std::string codec;
  std::vector<std::string> specs;
  std::vector<std::size_t> counts, long_counts;
  std::size_t rows = 0;
  double tolerance = 0;  ///< of a decoded value
};

Native intsum() {
  return {.codec = "intsum",
          .specs = {"intsum+ef", "intsum:rounding=stochastic+ef", "intsum:bits=16+ef",
                    "intsum:bits=16,rounding=stochastic+ef", "intsum:bits=32+ef",
                    "intsum:bits=32,rounding=stochastic+ef"},
          .counts = {3001, 300, 77},
          .long_counts = {5, grid_is_small() ? 20'001u : 200'001u, 0, 70'001, 1},
          .tolerance = 1e-6};
}

Native known_scale() {
  return {.codec = "intsum:scale=0.01",
          .specs = {"intsum:scale=0.01+ef", "intsum:bits=16,rounding=stochastic,scale=1e-4+ef",
                    "intsum:bits=32,scale=1e-5+ef"},
          .counts = {3001, 300, 77},
          .long_counts = {5, grid_is_small() ? 20'001u : 200'001u, 0, 70'001, 1},
          .tolerance = 1e-6};
}

Native lowrank() {
  return {.codec = "lowrank",
          .specs = {"lowrank+ef", "lowrank:rank=1+ef", "lowrank:rank=8,values=bf16+ef"},
          .counts = {70 * 130, 70 * 1000, 70 * 64},
          .long_counts = {70 * 130, 70 * 1000, 70 * 64},
          .rows = 70,
          .tolerance = 1e-5};
}

class NativeCalls : public ::testing::TestWithParam<Native> {
 protected:
  const Native& native() const { return GetParam(); }

  HarnessOptions with_rows(HarnessOptions options = {}) const {
    options.rows = native().rows;
    return options;
  }
  NativeRounds rounds_of(const std::string& spec, const HarnessOptions& options) const {
    return NativeRounds(spec, native().counts, with_rows(options));
  }
};

std::string name_of(const ::testing::TestParamInfo<Native>& info) {
  return info.param.codec.substr(0, info.param.codec.find(':')) +
         (info.param.codec.ends_with("1") ? "_scale" : "");
}

INSTANTIATE_TEST_SUITE_P(Codecs, NativeCalls, ::testing::Values(intsum(), known_scale(), lowrank()),
                         name_of);

TEST_P(NativeCalls, RejectsFrames) {
  CodecHarness harness(native().codec, native().counts, with_rows());
  const std::vector<GuardedBytes> frames = {GuardedBytes(harness.plan().frame_bytes)};
  const auto refused = [](const std::function<void()>& body) {
    return error_of<InvalidArgumentError>(body).find("only raw values") != std::string::npos;
  };
  EXPECT_TRUE(refused([&] { harness.encode(); }));
  EXPECT_TRUE(refused([&] { harness.decode(frames); }));
  EXPECT_TRUE(refused([&] { harness.reduce(frames); }));
}

/// Sums beyond the range of f16, and means enlarged by the codec, become 65504.
TEST_P(NativeCalls, FiniteF16GradientsStayFinite) {
  for (const std::string& spec : native().specs)
    for (const float factor : {1.0f, 1.0f / 3}) {
      NativeRounds rounds = rounds_of(spec, {.dtype = Dtype::kF16, .contributions = 3});
      for (CodecHarness& rank : rounds.ranks)
        for (std::size_t i = 0; i < rank.segments.size(); ++i) {
          std::vector<float> values = rank.gradient(i);
          for (float& one : values) one = std::copysign(65504.0f, one);
          rank.set_gradient(values, i);
        }
      rounds.exchange({.decode_factor = factor});
      for (const CodecHarness& rank : rounds.ranks)
        EXPECT_TRUE(
            std::ranges::all_of(rank.outputs(), [](float one) { return std::isfinite(one); }))
            << spec << factor;
    }
}

TEST_P(NativeCalls, RejectsInvalidRoundsAndFactors) {
  NativeRounds rounds = rounds_of(native().codec + "+ef", {.contributions = 2});
  rounds.exchange();
  CodecHarness& rank = rounds.ranks[0];
  std::vector<GuardedValues>& values = rounds.combined;
  const auto encode = [&](std::size_t round, float factor, GuardedValues& to) {
    rank.identity.round = static_cast<std::uint8_t>(round);
    rank.codec().encode_native(rank.encode_call(), factor, to.span());
  };
  for (std::size_t round = 0; round < values.size(); ++round) {
    EXPECT_NO_THROW(encode(round, 1.0f, values[round]));
    for (std::size_t other = 0; other < values.size(); ++other)
      if (other != round) EXPECT_THROW(encode(round, 1.0f, values[other]), InvalidArgumentError);
  }
  EXPECT_THROW(encode(values.size(), 1.0f, values.back()), InvalidArgumentError);
  for (const float factor : {0.0f, -1.0f, INFINITY, std::nanf("")})
    EXPECT_THROW(encode(values.size() - 1, factor, values.back()), InvalidArgumentError) << factor;
}

TEST_P(NativeCalls, OnlyTheLastRoundChangesStateAndMemory) {
  for (const std::string& spec : native().specs) {
    CodecHarness harness(spec, {native().counts[0]}, with_rows({.contributions = 1}));
    harness.share_residuals();
    const std::vector<float> before = harness.residual_in(), memory = harness.memory();
    harness.words.step = 4;
    const std::vector<Round> rounds = harness.plan().rounds;
    for (std::size_t round = 0; round < rounds.size(); ++round) {
      const bool is_last = round + 1 == rounds.size();
      GuardedValues values(rounds[round].native_count, rounds[round].native_dtype);
      harness.identity.round = static_cast<std::uint8_t>(round);
      EncodeCall call = harness.encode_call();
      call.words_out = &harness.words;
      harness.codec().encode_native(call, 1.0f, values.span());
      EXPECT_EQ(harness.words.step, is_last ? 5u : 4u);
      EXPECT_EQ(same_values(harness.residual_out(), before), !is_last);
      EXPECT_TRUE(same_values(harness.memory(), memory));
      if (!is_last) {
        harness.codec().absorb(harness.decode_call({}), values.span());
        continue;
      }
      harness.codec().decode_native(harness.decode_call({}), values.span());
      if (!memory.empty()) EXPECT_TRUE(same_values(harness.memory(), values.floats()));
    }
  }
}

TEST_P(NativeCalls, InactiveSegmentsSendZerosAndKeepTheState) {
  const std::uint32_t no = 0;
  for (const std::string& spec : native().specs) {
    NativeRounds rounds = rounds_of(spec, {.contributions = 2});
    NativeRounds without = rounds_of(spec, {.contributions = 2});
    const std::size_t count = native().counts[0];
    rounds.ranks[1].segments[0].active = &no;
    rounds.ranks[1].set_gradient(std::vector<float>(count, INFINITY));
    without.ranks[1].set_gradient(std::vector<float>(count, 0.0f));
    without.ranks[1].set_residual(std::vector<float>(count, 0.0f));
    rounds.exchange();
    without.exchange();
    for (std::size_t round = 0; round < rounds.raw.size(); ++round)
      EXPECT_TRUE(same_bytes(rounds.raw[round][1].bytes(), without.raw[round][1].bytes()));
    EXPECT_TRUE(same_values(rounds.ranks[0].outputs(), without.ranks[0].outputs()));
    EXPECT_TRUE(same_values(rounds.ranks[1].memory(), without.ranks[1].memory()));
    EXPECT_TRUE(same_values(rounds.ranks[1].residual_out(), rounds.ranks[1].residual_in()));
  }
}

TEST_P(NativeCalls, ResultIsIndependentOfIsaThreadsAndAlignment) {
  for (const std::string& spec : native().specs)
    for (const Dtype residual : {Dtype::kF32, Dtype::kBf16}) {
      const HarnessOptions options =
          with_rows({.dtype = residual, .residual_dtype = residual, .contributions = 2});
      NativeRounds expected(spec, native().long_counts, options);
      expected.exchange();
      for_each_isa([&] {
        for (const std::size_t shift : {0, 1, 3}) {
          HarnessOptions other = options;
          other.shift = shift;
          other.threads = shift == 0 ? 1 : 3;
          NativeRounds rounds(spec, native().long_counts, other);
          rounds.exchange({.shift = shift});
          expect_same_rounds(rounds, expected);
        }
      });
    }
}

TEST_P(NativeCalls, DecodeAddsAndScales) {
  NativeRounds rounds = rounds_of(native().codec, {.contributions = 3});
  rounds.exchange();
  const std::vector<float> sum = rounds.ranks[0].outputs();
  const std::vector<float> old = gaussian(native().counts[0], 5);
  for (CodecHarness& rank : rounds.ranks) {
    rank.set_output(old);
    for (std::size_t i = 0; i < rank.segments.size(); ++i)  // clears the state again
      rank.set_memory(std::vector<float>(rank.memory(i).size()), i);
  }
  rounds.exchange({.decode_factor = 0.25f, .mode = DecodeMode::kAdd});
  const std::vector<float> found = rounds.ranks[0].output();
  for (std::size_t i = 0; i < old.size(); ++i)
    ASSERT_NEAR(found[i], old[i] + 0.25f * sum[i], native().tolerance) << i;
}

TEST_P(NativeCalls, SecondCallsAllocateNothing) {
  if (test_device() != nullptr) GTEST_SKIP() << "the tests themselves allocate for a device";
  NativeRounds rounds(native().codec + "+ef", native().long_counts,
                      with_rows({.threads = 2, .contributions = 2}));
  rounds.exchange();
  CodecHarness& rank = rounds.ranks[0];
  EncodeCall encode = rank.encode_call();
  DecodeCall decode = rank.decode_call({});
  std::size_t before = 0;
  for (int iteration = 0; iteration < 2; ++iteration) {
    before = allocations();
    for (std::size_t round = 0; round < rounds.raw.size(); ++round) {
      encode.identity.round = decode.identity.round = static_cast<std::uint8_t>(round);
      rank.codec().encode_native(encode, 1.0f, rounds.raw[round][0].span());
      if (round + 1 < rounds.raw.size())
        rank.codec().absorb(decode, rounds.combined[round].span());
      else
        rank.codec().decode_native(decode, rounds.combined[round].span());
    }
  }
  EXPECT_EQ(allocations() - before, 0u);
}

}  // namespace
}  // namespace tersor::test
