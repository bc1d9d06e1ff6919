// The calls of lowrank: which round changes what, what is refused, and what does not matter to a
// bit: threads, alignment, instruction sets; what is not finite.

#include "tests/support/allocations.h"
#include "tests/support/codec_conformance.h"
#include "tests/support/native_rounds.h"
#include "tests/support/reference.h"

#include <tersor/codecs/lowrank.h>

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace tersor::test {
namespace {

constexpr std::size_t kCallRows = 70;
const std::vector<std::size_t> kCounts = {kCallRows * 130, kCallRows * 1000, kCallRows * 64};
const std::vector<std::string> kLowrankSpecs = {"lowrank+ef", "lowrank:rank=1+ef",
                                                "lowrank:rank=8,values=bf16+ef"};

HarnessOptions with_rows(HarnessOptions options = {}) {
  options.rows = kCallRows;
  return options;
}

std::string refusal_of(const std::string& spec, const Segment& segment) {
  return error_of<InvalidArgument>([&] { make_codec(spec)->plan({.segments = {&segment, 1}}); });
}

bool says(const std::string& error, const char* words) {
  return error.find(words) != std::string::npos;
}

TEST(LowrankCalls, RoundsAndSizes) {
  const Plan plan = CodecHarness("lowrank:rank=8,values=bf16", kCounts, with_rows()).plan();
  ASSERT_EQ(plan.rounds.size(), 2u);
  for (const Round& round : plan.rounds)
    EXPECT_EQ(round.exchanges, std::vector{Exchange::kNativeSum});
  EXPECT_EQ(plan.rounds[0].native_dtype, Dtype::kF32);
  EXPECT_EQ(plan.rounds[0].native_count, 3 * 8 * kCallRows);
  EXPECT_EQ(plan.rounds[1].native_dtype, Dtype::kBf16);
  EXPECT_EQ(plan.rounds[1].native_count, 8u * (130 + 1000 + 64));
  EXPECT_EQ(plan.kept_bytes, 3 * 8 * 128 * sizeof(float));
  const std::size_t widest = 8 * 1024, all = 8 * (192 + 1024 + 64);  // a device's: by 64 rows, too
  EXPECT_EQ(plan.workspace_bytes,
            (default_memory() == Memory::kHost ? widest : 3 * all) * sizeof(float));
  const auto codec = make_codec("lowrank:rank=8");
  EXPECT_EQ(codec->memory_count({.count = 9100, .rows = 70, .columns = 130}), 8u * 130);
  EXPECT_EQ(make_codec("int8+ef")->memory_count({.count = 9100}), 0u);
  EXPECT_FALSE(codec->traits().divisible);
}

TEST(LowrankCalls, ShapesThatDoNotPayAreRefused) {
  EXPECT_EQ(refusal_of("lowrank", {.count = 9100, .rows = 70, .columns = 130}), "");
  EXPECT_TRUE(says(refusal_of("lowrank", {.count = 9100}), "GradientReducer::add"));
  EXPECT_TRUE(says(refusal_of("lowrank", {.count = 9101, .rows = 70, .columns = 130}), "70 rows"));
  EXPECT_TRUE(says(refusal_of("lowrank", {}), "0 rows"));
  EXPECT_TRUE(says(refusal_of("lowrank", {.count = 400, .rows = 20, .columns = 20}), "too small"));
  EXPECT_EQ(refusal_of("lowrank:rank=2", {.count = 400, .rows = 20, .columns = 20}), "");
  for (const std::size_t rows : {1, 9100}) {
    const Segment line{.count = 9100, .rows = rows, .columns = 9100 / rows};
    EXPECT_TRUE(says(refusal_of("lowrank:rank=1", line), "too small"));
  }
}

TEST(LowrankCalls, FramesAreRefused) {
  CodecHarness harness("lowrank", kCounts, with_rows());
  const std::vector<GuardedBytes> frames = [&] {
    std::vector<GuardedBytes> made;
    made.emplace_back(harness.plan().frame_bytes);
    return made;
  }();
  const auto refused = [](const std::function<void()>& body) {
    return says(error_of<InvalidArgument>(body), "bare values only");
  };
  EXPECT_TRUE(refused([&] { harness.encode(); }));
  EXPECT_TRUE(refused([&] { harness.decode(frames); }));
  EXPECT_TRUE(refused([&] { harness.reduce(frames); }));
}

TEST(LowrankCalls, WrongCallsAreRefused) {
  NativeRounds rounds("lowrank+ef", kCounts, with_rows({.contributions = 2}));
  rounds.exchange();
  CodecHarness& rank = rounds.ranks[0];
  GuardedValues left = rounds.combined[0], right = rounds.combined[1];
  const auto encode = [&](std::uint8_t round, float factor, GuardedValues& values) {
    rank.identity.round = round;
    rank.codec().encode_native(rank.encode_call(), factor, values.span());
  };
  EXPECT_NO_THROW(encode(0, 1.0f, left));
  EXPECT_THROW(encode(0, 1.0f, right), InvalidArgument);
  EXPECT_THROW(encode(1, 1.0f, left), InvalidArgument);
  EXPECT_THROW(encode(2, 1.0f, right), InvalidArgument);
  for (const float factor : {0.0f, -1.0f, INFINITY, std::nanf("")})
    EXPECT_THROW(encode(1, factor, right), InvalidArgument) << factor;
  EncodeCall call = rank.encode_call();
  const std::vector<SegmentMemory> two(call.memories.begin(), call.memories.end() - 1);
  call.memories = two;
  EXPECT_TRUE(
      says(error_of<InvalidArgument>([&] { rank.codec().encode_native(call, 1.0f, right.span()); }),
           "2 memories for 3 segments"));
  std::vector<SegmentMemory> short_one = two;
  short_one.push_back({two[0].in.subspan(0, 3), two[0].out.subspan(0, 3)});
  call.memories = short_one;
  EXPECT_TRUE(
      says(error_of<InvalidArgument>([&] { rank.codec().encode_native(call, 1.0f, right.span()); }),
           "the memory of segment 2"));
}

TEST(LowrankCalls, OnlyTheLastRoundChangesStateAndMemory) {
  CodecHarness harness("lowrank+ef", {kCounts[0]}, with_rows({.contributions = 1}));
  harness.share_residuals();
  const std::vector<float> before = harness.residual_in(), memory = harness.memory();
  harness.words.step = 4;
  const Plan plan = harness.plan();
  GuardedValues left(plan.rounds[0].native_count, Dtype::kF32, 0);
  GuardedValues right(plan.rounds[1].native_count, Dtype::kF32, 0);
  EncodeCall call = harness.encode_call();
  call.words_out = &harness.words;
  harness.codec().encode_native(call, 1.0f, left.span());
  harness.codec().absorb(harness.decode_call({}), left.span());
  EXPECT_TRUE(same_values(harness.residual_out(), before));
  EXPECT_EQ(harness.words.step, 4u);
  call.identity.round = harness.identity.round = 1;
  harness.codec().encode_native(call, 1.0f, right.span());
  EXPECT_EQ(harness.words.step, 5u);
  EXPECT_FALSE(same_values(harness.residual_out(), before));
  EXPECT_TRUE(same_values(harness.memory(), memory));
  harness.codec().decode_native(harness.decode_call({}), right.span());
  EXPECT_TRUE(same_values(harness.memory(), right.floats()));
}

TEST(LowrankCalls, InactiveSegmentsSendZerosAndKeepTheResidual) {
  const std::uint32_t no = 0;
  for (const std::string& spec : kLowrankSpecs) {
    NativeRounds rounds(spec, kCounts, with_rows({.contributions = 2})),
        without(spec, kCounts, with_rows({.contributions = 2}));
    rounds.ranks[1].segments[0].active = &no;
    rounds.ranks[1].set_gradient(std::vector<float>(kCounts[0], INFINITY));
    without.ranks[1].set_gradient(std::vector<float>(kCounts[0], 0.0f));
    without.ranks[1].set_residual(std::vector<float>(kCounts[0], 0.0f));
    rounds.exchange();
    without.exchange();
    EXPECT_TRUE(same_values(rounds.ranks[0].outputs(), without.ranks[0].outputs()));
    EXPECT_TRUE(same_values(rounds.ranks[1].memory(), without.ranks[1].memory()));
    EXPECT_TRUE(same_values(rounds.ranks[1].residual_out(), rounds.ranks[1].residual_in()));
  }
}

/// Everything that one exchange wrote.
void expect_same_rounds(const NativeRounds& a, const NativeRounds& b) {
  for (std::size_t rank = 0; rank < a.ranks.size(); ++rank) {
    for (std::size_t round = 0; round < a.bare.size(); ++round)
      EXPECT_TRUE(same_bytes(a.bare[round][rank].bytes(), b.bare[round][rank].bytes()));
    EXPECT_TRUE(same_values(a.ranks[rank].residuals_out(), b.ranks[rank].residuals_out()));
    EXPECT_TRUE(same_values(a.ranks[rank].outputs(), b.ranks[rank].outputs()));
    for (std::size_t i = 0; i < kCounts.size(); ++i)
      EXPECT_TRUE(same_values(a.ranks[rank].memory(i), b.ranks[rank].memory(i)));
  }
  EXPECT_TRUE(a.intact() && b.intact());
}

TEST(LowrankCalls, InstructionSetsThreadsAndAlignmentDoNotMatter) {
  for (const std::string& spec : kLowrankSpecs)
    for (const Dtype residual : {Dtype::kF32, Dtype::kBf16}) {
      const HarnessOptions options =
          with_rows({.dtype = residual, .residual_dtype = residual, .contributions = 2});
      NativeRounds expected(spec, kCounts, options);
      expected.exchange();
      for_each_isa([&] {
        for (const std::size_t shift : {0, 1, 3}) {
          HarnessOptions other = options;
          other.shift = shift;
          other.threads = shift == 0 ? 1 : 3;
          NativeRounds rounds(spec, kCounts, other);
          rounds.exchange({.shift = shift});
          expect_same_rounds(rounds, expected);
        }
      });
    }
}

// Finite sums of P, whose products with each other are not: they are brought to one before.
TEST(LowrankCalls, HugeSumsMakeABasis) {
  constexpr std::size_t kCallCount = 400 * 130;
  for_each_isa([] {
    NativeRounds rounds("lowrank:rank=8+ef", {kCallCount}, {.contributions = 2, .rows = 400});
    for (CodecHarness& rank : rounds.ranks)
      rank.set_gradient(std::vector<float>(kCallCount, 1e37f));
    rounds.exchange({.encode_factor = 0.5f});
    for (const float value : rounds.combined[0].floats()) ASSERT_TRUE(std::isfinite(value));
    const float mean = rounds.ranks[0].words.gradient_factor * 1e37f;
    for (const float value : rounds.ranks[0].output()) ASSERT_NEAR(value, mean, 1e-5 * mean);
  });
}

// A column whose own W is infinite, while P is not: it and those that share 256 columns with it.
TEST(LowrankCalls, WhereWOverflowsTheResidualStays) {
  constexpr std::size_t kColumns = 400, kBad = 300;
  for_each_isa([] {
    NativeRounds rounds("lowrank:rank=1+ef", {kCallRows * kColumns},
                        {.contributions = 1, .rows = kCallRows});
    CodecHarness& rank = rounds.ranks[0];
    std::vector<float> gradient = rank.gradient(), memory(kColumns, 1.0f);
    for (std::size_t i = 0; i < kCallRows; ++i) gradient[i * kColumns + kBad] = 3e38f;
    memory[kBad] = 0x1p-20f;
    rank.set_gradient(gradient);
    rank.set_memory(memory);
    rounds.exchange();
    EXPECT_TRUE(std::isinf(rounds.bare[1][0].floats()[kBad]));
    const std::vector<float> old = rank.residual_in(), residual = rank.residual_out();
    for (std::size_t i = 0; i < residual.size(); ++i)
      ASSERT_EQ(residual[i] == old[i], i % kColumns >= 256) << i;
    EXPECT_EQ(rank.memory(), memory);
  });
}

TEST(LowrankCalls, DecodeAddsAndScales) {
  NativeRounds rounds("lowrank", kCounts, with_rows({.contributions = 3}));
  rounds.exchange();
  const std::vector<float> sum = rounds.ranks[0].outputs();
  const std::vector<float> old = gaussian(kCounts[0], 5);
  for (CodecHarness& rank : rounds.ranks) {
    rank.set_output(old);
    for (std::size_t i = 0; i < kCounts.size(); ++i)  // cold again
      rank.set_memory(std::vector<float>(rank.memory(i).size()), i);
  }
  rounds.exchange({.decode_factor = 0.25f, .mode = DecodeMode::kAdd});
  const std::vector<float> found = rounds.ranks[0].output();
  for (std::size_t i = 0; i < old.size(); ++i)
    ASSERT_NEAR(found[i], old[i] + 0.25f * sum[i], 1e-5) << i;
}

TEST(LowrankCalls, SecondCallsAllocateNothing) {
  if (test_device() != nullptr) GTEST_SKIP() << "the tests themselves allocate for a device";
  NativeRounds rounds("lowrank+ef", kCounts, with_rows({.threads = 2, .contributions = 2}));
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

}  // namespace
}  // namespace tersor::test
