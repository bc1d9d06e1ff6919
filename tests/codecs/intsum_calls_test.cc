// Calls of intsum (see native_calls_test.cc): sizes, refused calls, and bitwise independence of
// chunks and of the caller's float mode.

#include "tests/support/codec_conformance.h"
#include "tests/support/native_rounds.h"

#include <tersor/codecs/intsum.h>

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tersor::test {
namespace {

const std::vector<std::string> kIntsumSpecs = {
    "intsum+ef",         "intsum:rounding=stochastic+ef",
    "intsum:bits=16+ef", "intsum:bits=16,rounding=stochastic+ef",
    "intsum:bits=32+ef", "intsum:bits=32,rounding=stochastic+ef"};

TEST(IntsumCalls, RoundsAndSizes) {
  const auto plan_of = [](const char* spec) {
    return CodecHarness(spec, {700, 0, 301}, {.contributions = 5}).plan();
  };
  const std::vector<std::pair<Dtype, std::size_t>> codes = {
      {Dtype::kI8, 1001}, {Dtype::kU32, 350 + 151}, {Dtype::kI32, 1001}};
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const Plan plan = plan_of(kIntsumSpecs[2 * i].c_str());
    ASSERT_EQ(plan.rounds.size(), 2u);
    EXPECT_EQ(plan.rounds[0].exchanges, std::vector{Exchange::kNativeMaximum});
    EXPECT_EQ(plan.rounds[0].native_dtype, Dtype::kU32);
    EXPECT_EQ(plan.rounds[0].native_count, 5u);
    EXPECT_EQ(plan.rounds[1].exchanges, std::vector{Exchange::kNativeSum});
    EXPECT_EQ(plan.rounds[1].native_dtype, codes[i].first);
    EXPECT_EQ(plan.rounds[1].native_count, codes[i].second);
    EXPECT_EQ(plan.round_state_bytes, 5 * sizeof(float));
    EXPECT_EQ(plan.frame_bytes, sizeof(FrameHeader));
  }
}

TEST(IntsumCalls, FixedScaleNeedsNoMaximumRound) {
  const std::vector<std::pair<const char*, std::size_t>> specs = {
      {"intsum:scale=0.01+ef", 1001 + 5},
      {"intsum:bits=16,scale=0.01+ef", 350 + 151 + 5},
      {"intsum:bits=32,scale=0.01+ef", 1001 + 5}};
  for (const auto& [spec, values] : specs) {
    CodecHarness harness(spec, {700, 0, 301}, {.contributions = 5});
    const Plan plan = harness.plan();
    ASSERT_EQ(plan.rounds.size(), 1u);
    EXPECT_EQ(plan.rounds[0].exchanges, std::vector{Exchange::kNativeSum});
    EXPECT_EQ(plan.rounds[0].native_count, values);
    GuardedValues back(values, plan.rounds[0].native_dtype);
    const std::string error = error_of<InvalidArgumentError>(
        [&] { harness.codec().absorb(harness.decode_call({}), back.span()); });
    EXPECT_NE(error.find("no sums to absorb"), std::string::npos) << error;
    harness.identity.round = 1;
    EXPECT_THROW(harness.codec().encode_native(harness.encode_call(), 1.0f, back.span()),
                 InvalidArgumentError);
  }
}

TEST(IntsumCalls, FixedScaleCountsRanksWithNonFiniteValues) {
  for (const char* spec : {"intsum:scale=0.01", "intsum:bits=16,scale=0.01"}) {
    NativeRounds rounds(spec, {300, 700}, {.contributions = 3});
    for (const std::size_t rank : {0, 2}) {
      std::vector<float> gradient = rounds.ranks[rank].gradient(1);
      gradient[600] = rank == 0 ? INFINITY : std::nanf("");
      rounds.ranks[rank].set_gradient(gradient, 1);
    }
    rounds.exchange();
    const ConstValueSpan sums = rounds.combined[0].span();
    std::vector<unsigned> flags;
    for (std::size_t i = sums.count() - 5; i < sums.count(); ++i)
      flags.push_back(sums.dtype() == Dtype::kI8 ? numbers<std::uint8_t>(sums)[i]
                                                 : numbers<std::uint32_t>(sums)[i]);
    EXPECT_EQ(flags, (std::vector<unsigned>{0, 0, 0, 0, 2})) << spec;
  }
}

TEST(IntsumCalls, ErrorForTooManyRanksSuggestsBits) {
  const Segment segment{.count = 700};
  const auto error = [&](const char* spec, std::size_t ranks) {
    return error_of<InvalidArgumentError>([&] {
      make_codec(spec)->plan({.segments = {&segment, 1}, .contributions = ranks});
    });
  };
  const auto says = [](const std::string& error, const char* words) {
    return error.find(words) != std::string::npos;
  };
  EXPECT_EQ(error("intsum", 127), "");
  EXPECT_TRUE(says(error("intsum", 128), "the codes of 128 ranks"));
  EXPECT_TRUE(says(error("intsum", 128), "use bits=16"));
  EXPECT_TRUE(says(error("intsum", 40'000), "use bits=32"));
  EXPECT_EQ(error("intsum:bits=16", 32'767), "");
  EXPECT_TRUE(says(error("intsum:bits=16,rounding=stochastic", 32'768), "use bits=32"));
  EXPECT_EQ(error("intsum:bits=32", 0x7fffffff), "");
  EXPECT_TRUE(says(error("intsum:bits=32", 0x80000000), "no accumulator size fits so many ranks"));
}

TEST(IntsumCalls, RejectsMismatchedValuesAndRoundState) {
  NativeRounds rounds("intsum+ef", {300}, {.contributions = 2});
  rounds.exchange();
  CodecHarness& rank = rounds.ranks[0];
  const auto refuses = [&](std::uint8_t round, ConstValueSpan values) {
    rank.identity.round = round;
    EXPECT_THROW(rank.codec().absorb(rank.decode_call({}), values), InvalidArgumentError);
    EXPECT_THROW(rank.codec().decode_native(rank.decode_call({}), values), InvalidArgumentError);
  };
  refuses(0, rounds.combined[1].span());
  refuses(1, rounds.combined[0].span());
  EncodeCall call = rank.encode_call();
  call.execution.round_state = call.execution.round_state.first(7);
  EXPECT_THROW(rank.codec().encode_native(call, 1.0f, rounds.combined[1].span()),
               InvalidArgumentError);
}

TEST(IntsumCalls, ChunkingDoesNotChangeResults) {
  for (const std::string& spec : kIntsumSpecs) {
    NativeRounds whole(spec, {10'001}, {.contributions = 2}),
        cut(spec, {512, 5120, 10'001 - 5632}, {.contributions = 2});
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const std::vector<float> gradient = whole.ranks[rank].gradient();
      const std::vector<float> residual = whole.ranks[rank].residual_in();
      std::size_t first = 0;
      for (std::size_t i = 0; i < 3; ++i) {
        Segment& segment = cut.ranks[rank].segments[i];
        segment.parameter = whole.ranks[rank].segments[0].parameter;
        segment.first_index = first;
        const std::size_t last = first + segment.count;
        cut.ranks[rank].set_gradient({gradient.begin() + first, gradient.begin() + last}, i);
        cut.ranks[rank].set_residual({residual.begin() + first, residual.begin() + last}, i);
        first = last;
      }
    }
    whole.exchange();
    cut.exchange();
    expect_same_rounds(whole, cut);
  }
}

TEST(IntsumCalls, ResultIsIndependentOfCallerFloatMode) {
#if defined(__x86_64__)
  if (test_device() != nullptr) GTEST_SKIP() << "a device has a mode of its own";
  const HarnessOptions options{.scale = 0x1p-97f, .contributions = 2};
  NativeRounds expected("intsum+ef", {3000}, options), found("intsum+ef", {3000}, options);
  const NativeOptions factors{.encode_factor = 0.3f, .decode_factor = 0x1p-30f};
  expected.exchange(factors);
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040 | 0x6000);  // flush-to-zero, denormals-are-zero, round towards zero
  found.exchange(factors);
  _mm_setcsr(mode);
  expect_same_rounds(found, expected);
#else
  GTEST_SKIP() << "no way to change the float mode here";
#endif
}

}  // namespace
}  // namespace tersor::test
