// The calls of intsum: which round changes what, what is refused, and what does not matter to a
// bit: threads, alignment, chunks, the caller's float mode.

#include "tests/support/allocations.h"
#include "tests/support/codec_conformance.h"
#include "tests/support/grid.h"
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
    "intsum+ef",          "intsum:rounding=stochastic+ef",
    "intsum:lanes=16+ef", "intsum:lanes=16,rounding=stochastic+ef",
    "intsum:lanes=32+ef", "intsum:lanes=32,rounding=stochastic+ef"};

/// Everything that one exchange wrote.
void expect_same(const NativeRounds& a, const NativeRounds& b) {
  for (std::size_t rank = 0; rank < a.ranks.size(); ++rank) {
    for (std::size_t round = 0; round < a.bare.size(); ++round)
      EXPECT_TRUE(same_bytes(a.bare[round][rank].bytes(), b.bare[round][rank].bytes()));
    EXPECT_TRUE(same_values(a.ranks[rank].residuals_out(), b.ranks[rank].residuals_out()));
    EXPECT_TRUE(same_values(a.ranks[rank].outputs(), b.ranks[rank].outputs()));
  }
  EXPECT_TRUE(a.intact() && b.intact());
}

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
    EXPECT_EQ(plan.kept_bytes, 5 * sizeof(float));
    EXPECT_EQ(plan.frame_bytes, sizeof(FrameHeader));
  }
}

TEST(IntsumCalls, TooManyRanksAreToldWhichLanesToTake) {
  const Segment segment{.count = 700};
  const auto error = [&](const char* spec, std::size_t ranks) {
    return error_of<InvalidArgument>([&] {
      make_codec(spec)->plan({.segments = {&segment, 1}, .contributions = ranks});
    });
  };
  const auto says = [](const std::string& error, const char* words) {
    return error.find(words) != std::string::npos;
  };
  EXPECT_EQ(error("intsum", 127), "");
  EXPECT_TRUE(says(error("intsum", 128), "the codes of 128 ranks"));
  EXPECT_TRUE(says(error("intsum", 128), "take lanes=16"));
  EXPECT_TRUE(says(error("intsum", 40'000), "take lanes=32"));
  EXPECT_EQ(error("intsum:lanes=16", 32'767), "");
  EXPECT_TRUE(says(error("intsum:lanes=16,rounding=stochastic", 32'768), "take lanes=32"));
  EXPECT_EQ(error("intsum:lanes=32", 0x7fffffff), "");
  EXPECT_TRUE(says(error("intsum:lanes=32", 0x80000000), "no lanes hold so many"));
}

TEST(IntsumCalls, FramesAreRefused) {
  CodecHarness harness("intsum", {300});
  const std::vector<GuardedBytes> frames = {GuardedBytes(harness.plan().frame_bytes)};
  const auto refused = [](const std::function<void()>& body) {
    return error_of<InvalidArgument>(body).find("bare values only") != std::string::npos;
  };
  EXPECT_TRUE(refused([&] { harness.encode(); }));
  EXPECT_TRUE(refused([&] { harness.decode(frames); }));
  EXPECT_TRUE(refused([&] { harness.reduce(frames); }));
}

TEST(IntsumCalls, WrongCallsAreRefused) {
  NativeRounds rounds("intsum+ef", {300}, {.contributions = 2});
  rounds.exchange();
  CodecHarness& rank = rounds.ranks[0];
  GuardedValues maxima = rounds.combined[0], codes = rounds.combined[1];
  const auto encode = [&](std::uint8_t round, float factor, GuardedValues& values) {
    rank.identity.round = round;
    rank.codec().encode_native(rank.encode_call(), factor, values.span());
  };
  EXPECT_NO_THROW(encode(0, 1.0f, maxima));
  EXPECT_NO_THROW(encode(1, 1.0f, codes));
  EXPECT_THROW(encode(0, 1.0f, codes), InvalidArgument);
  EXPECT_THROW(encode(1, 1.0f, maxima), InvalidArgument);
  EXPECT_THROW(encode(2, 1.0f, codes), InvalidArgument);
  for (const float factor : {0.0f, -1.0f, INFINITY, std::nanf("")})
    EXPECT_THROW(encode(1, factor, codes), InvalidArgument) << factor;
  rank.identity.round = 1;
  EXPECT_THROW(rank.codec().absorb(rank.decode_call({}), maxima.span()), InvalidArgument);
  EXPECT_THROW(rank.codec().decode_native(rank.decode_call({}), maxima.span()), InvalidArgument);
  EncodeCall call = rank.encode_call();
  call.execution.kept = call.execution.kept.first(7);
  EXPECT_THROW(rank.codec().encode_native(call, 1.0f, codes.span()), InvalidArgument);
  rank.identity.round = 0;
  EXPECT_THROW(rank.codec().absorb(rank.decode_call({}), codes.span()), InvalidArgument);
  EXPECT_THROW(rank.codec().decode_native(rank.decode_call({}), codes.span()), InvalidArgument);
}

TEST(IntsumCalls, OnlyTheLastRoundChangesTheState) {
  for (const std::string& spec : kIntsumSpecs) {
    CodecHarness harness(spec, {3000}, {.contributions = 1});
    harness.share_residuals();
    const std::vector<float> before = harness.residual_in();
    harness.words.step = 4;
    GuardedValues maxima(12, Dtype::kU32);
    EncodeCall call = harness.encode_call();
    call.words_out = &harness.words;
    harness.codec().encode_native(call, 1.0f, maxima.span());
    EXPECT_EQ(harness.words.step, 4u);
    harness.codec().absorb(harness.decode_call({}), maxima.span());
    EXPECT_TRUE(same_values(harness.residual_out(), before));
    const Round round = harness.plan().rounds[1];
    GuardedValues codes(round.native_count, round.native_dtype);
    call.identity.round = 1;
    harness.codec().encode_native(call, 1.0f, codes.span());
    EXPECT_EQ(harness.words.step, 5u);
    EXPECT_FALSE(same_values(harness.residual_out(), before));
  }
}

TEST(IntsumCalls, InactiveSegmentsSendZerosAndKeepTheState) {
  const std::uint32_t no = 0;
  for (const std::string& spec : kIntsumSpecs) {
    NativeRounds rounds(spec, {1001, 300}, {.contributions = 2}),
        without(spec, {1001, 300}, {.contributions = 2});
    rounds.ranks[1].segments[0].active = &no;
    rounds.ranks[1].set_gradient(std::vector<float>(1001, INFINITY));
    without.ranks[1].set_gradient(std::vector<float>(1001, 0.0f));
    without.ranks[1].set_residual(std::vector<float>(1001, 0.0f));
    rounds.exchange();
    without.exchange();
    for (std::size_t round = 0; round < 2; ++round)
      EXPECT_TRUE(same_bytes(rounds.bare[round][1].bytes(), without.bare[round][1].bytes()));
    EXPECT_TRUE(same_values(rounds.ranks[0].outputs(), without.ranks[0].outputs()));
    EXPECT_TRUE(same_values(rounds.ranks[1].residual_out(), rounds.ranks[1].residual_in()));
  }
}

TEST(IntsumCalls, InstructionSetsThreadsAndAlignmentDoNotMatter) {
  const std::size_t longest = grid_is_small() ? 20'001 : 200'001;
  const std::vector<std::size_t> counts = {5, longest, 0, 70'001, 1};
  for (const std::string& spec : kIntsumSpecs)
    for (const Dtype residual : {Dtype::kF32, Dtype::kBf16}) {
      const HarnessOptions options{
          .dtype = residual, .residual_dtype = residual, .contributions = 2};
      NativeRounds expected(spec, counts, options);
      expected.exchange();
      for_each_isa([&] {
        for (const std::size_t shift : {0, 1, 3}) {
          HarnessOptions other = options;
          other.shift = shift;
          other.threads = shift == 0 ? 1 : 3;
          NativeRounds rounds(spec, counts, other);
          rounds.exchange({.shift = shift});
          expect_same(rounds, expected);
        }
      });
    }
}

TEST(IntsumCalls, ChunksMakeTheSameValues) {
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
    expect_same(whole, cut);
  }
}

TEST(IntsumCalls, DecodeAddsAndScales) {
  NativeRounds rounds("intsum", {2000, 77}, {.contributions = 3});
  rounds.exchange();
  const std::vector<float> sum = rounds.ranks[0].outputs();
  const std::vector<float> old = gaussian(2000, 5);
  for (CodecHarness& rank : rounds.ranks) rank.set_output(old);
  rounds.exchange({.decode_factor = 0.25f, .mode = DecodeMode::kAdd});
  const std::vector<float> found = rounds.ranks[0].output();
  for (std::size_t i = 0; i < old.size(); ++i)
    ASSERT_NEAR(found[i], old[i] + 0.25f * sum[i], 1e-6) << i;
}

TEST(IntsumCalls, SecondCallsAllocateNothing) {
  if (test_device() != nullptr) GTEST_SKIP() << "the tests themselves allocate for a device";
  NativeRounds rounds("intsum+ef", {70'001, 300}, {.threads = 2, .contributions = 2});
  rounds.exchange();
  CodecHarness& rank = rounds.ranks[0];
  EncodeCall encode = rank.encode_call();
  DecodeCall decode = rank.decode_call({});
  std::size_t before = 0;
  for (int turn = 0; turn < 2; ++turn) {
    before = allocations();
    encode.identity.round = decode.identity.round = 0;
    rank.codec().encode_native(encode, 1.0f, rounds.bare[0][0].span());
    rank.codec().absorb(decode, rounds.combined[0].span());
    encode.identity.round = decode.identity.round = 1;
    rank.codec().encode_native(encode, 1.0f, rounds.bare[1][0].span());
    rank.codec().decode_native(decode, rounds.combined[1].span());
  }
  EXPECT_EQ(allocations() - before, 0u);
}

TEST(IntsumCalls, TheCallersFloatModeDoesNotMatter) {
#if defined(__x86_64__)
  if (test_device() != nullptr) GTEST_SKIP() << "a device has a mode of its own";
  const HarnessOptions options{.scale = 0x1p-97f, .contributions = 2};
  NativeRounds expected("intsum+ef", {3000}, options), found("intsum+ef", {3000}, options);
  const NativeOptions factors{.encode_factor = 0.3f, .decode_factor = 0x1p-30f};
  expected.exchange(factors);
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040 | 0x6000);  // flush denormals both ways, round towards zero
  found.exchange(factors);
  _mm_setcsr(mode);
  expect_same(found, expected);
#else
  GTEST_SKIP() << "no way to change the float mode here";
#endif
}

}  // namespace
}  // namespace tersor::test
