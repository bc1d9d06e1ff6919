// Calls of lowrank (see native_calls_test.cc): sizes, refused calls, and non-finite values.

#include "tests/support/codec_conformance.h"
#include "tests/support/native_rounds.h"
#include "tests/support/reference.h"

#include <tersor/codecs/lowrank.h>

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tersor::test {
namespace {

constexpr std::size_t kCallRows = 70;
const std::vector<std::size_t> kCounts = {kCallRows * 130, kCallRows * 1000, kCallRows * 64};

HarnessOptions with_rows(HarnessOptions options = {}) {
  options.rows = kCallRows;
  return options;
}

std::string refusal_of(const std::string& spec, const Segment& segment) {
  return error_of<InvalidArgumentError>([&] {
    make_codec(spec)->plan({.segments = {&segment, 1}});
  });
}

TEST(LowrankCalls, ResultIsIndependentOfCallerFloatMode) {
#if defined(__x86_64__)
  if (test_device() != nullptr) GTEST_SKIP() << "a device has a mode of its own";
  const HarnessOptions options = with_rows({.scale = 0x1p-140f, .contributions = 1});
  NativeRounds expected("lowrank+ef", kCounts, options), found("lowrank+ef", kCounts, options);
  expected.exchange();
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040);  // flush-to-zero, denormals-are-zero
  found.exchange();
  _mm_setcsr(mode);
  expect_same_rounds(found, expected);
#else
  GTEST_SKIP() << "no way to change the float mode here";
#endif
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
  EXPECT_EQ(plan.round_state_bytes, 3 * 8 * 128 * sizeof(float));
  const std::size_t widest = 8 * 1024, all = 8 * (192 + 1024 + 64);  // a device also needs 64 rows
  EXPECT_EQ(plan.workspace_bytes,
            (default_memory() == Memory::kHost ? widest : 3 * all) * sizeof(float));
  const auto codec = make_codec("lowrank:rank=8");
  EXPECT_EQ(codec->memory_count({.count = 9100, .rows = 70, .columns = 130}), 8u * 130);
  EXPECT_EQ(make_codec("int8+ef")->memory_count({.count = 9100}), 0u);
  EXPECT_FALSE(codec->traits().divisible);
}

TEST(LowrankCalls, RejectsInvalidAndUnprofitableShapes) {
  EXPECT_EQ(refusal_of("lowrank", {.count = 9100, .rows = 70, .columns = 130}), "");
  EXPECT_TRUE(says(refusal_of("lowrank", {.count = 9100}), "rows and columns to add()"));
  EXPECT_TRUE(says(refusal_of("lowrank", {.count = 9101, .rows = 70, .columns = 130}), "70 rows"));
  EXPECT_TRUE(says(refusal_of("lowrank", {}), "0 rows"));
  EXPECT_TRUE(says(refusal_of("lowrank", {.count = 400, .rows = 20, .columns = 20}), "too small"));
  EXPECT_EQ(refusal_of("lowrank:rank=2", {.count = 400, .rows = 20, .columns = 20}), "");
  for (const std::size_t rows : {1, 9100}) {
    const Segment line{.count = 9100, .rows = rows, .columns = 9100 / rows};
    EXPECT_TRUE(says(refusal_of("lowrank:rank=1", line), "too small"));
  }
}

TEST(LowrankCalls, RejectsMemoriesOfWrongSize) {
  NativeRounds rounds("lowrank+ef", kCounts, with_rows({.contributions = 2}));
  rounds.exchange();
  CodecHarness& rank = rounds.ranks[0];
  rank.identity.round = 1;
  EncodeCall call = rank.encode_call();
  const auto error_with = [&](const std::vector<SegmentMemory>& memories) {
    call.memories = memories;
    return error_of<InvalidArgumentError>(
        [&] { rank.codec().encode_native(call, 1.0f, rounds.combined[1].span()); });
  };
  std::vector<SegmentMemory> memories(call.memories.begin(), call.memories.end() - 1);
  EXPECT_TRUE(says(error_with(memories), "2 memories for 3 segments"));
  memories.push_back({memories[0].in.subspan(0, 3), memories[0].out.subspan(0, 3)});
  EXPECT_TRUE(says(error_with(memories), "the memory of segment 2"));
}

// Finite sums of P with infinite products. The codec scales the sums to 1 before multiplication.
TEST(LowrankCalls, HugeSumsGiveAccurateMean) {
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

// W is infinite in one column, P is finite. The group of 256 columns around this column keeps the
// residual.
TEST(LowrankCalls, OverflowOfWKeepsResidualAndMemory) {
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
    EXPECT_TRUE(std::isinf(rounds.raw[1][0].floats()[kBad]));
    const std::vector<float> old = rank.residual_in(), residual = rank.residual_out();
    for (std::size_t i = 0; i < residual.size(); ++i)
      ASSERT_EQ(residual[i] == old[i], i % kColumns >= 256) << i;
    EXPECT_EQ(rank.memory(), memory);
  });
}

}  // namespace
}  // namespace tersor::test
