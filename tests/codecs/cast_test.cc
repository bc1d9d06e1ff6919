// bf16 and f16 compared with a double-precision reference, and properties of casts only.

#include "tests/support/codec_conformance.h"
#include "tests/support/reference.h"

#include <cmath>
#include <cstring>

namespace tersor::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Bf16, CodecConformance,
                         ::testing::Values(CodecCase{"bf16", 0x1p-8}, CodecCase{"bf16+ef", 0x1p-8},
                                           CodecCase{"bf16:rounding=stochastic", 0x1p-7},
                                           CodecCase{"bf16:rounding=stochastic+ef", 0x1p-7}),
                         case_name);
INSTANTIATE_TEST_SUITE_P(F16, CodecConformance,
                         ::testing::Values(CodecCase{"f16", 0x1p-11}, CodecCase{"f16+ef", 0x1p-11}),
                         case_name);

/// f32 values of all exponents, ties and neighbors of ties, infinities and NaNs.
std::vector<float> all_kinds() {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000; high += 3)
    for (const std::uint32_t low : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u})
      values.push_back(from_bits(high << 16 | low));
  return values;
}

std::vector<std::uint16_t> cast_values_of(const GuardedBytes& frame, std::size_t count) {
  std::vector<std::uint16_t> values(count);
  std::memcpy(values.data(), frame.span().data() + sizeof(FrameHeader), 2 * count);
  return values;
}

TEST(Cast, RoundsToNearestEvenAndKeepsNonFiniteValues) {
  const std::vector<float> values = all_kinds();
  for_each_isa([&] {
    for (const auto& [spec, dtype] : {std::pair{"bf16", Dtype::kBf16}, {"f16", Dtype::kF16}}) {
      CodecHarness harness(spec, {values.size()});
      harness.set_gradient(values);
      const GuardedBytes frame = harness.encode();
      harness.decode({frame});
      const std::vector<std::uint16_t> found = cast_values_of(frame, values.size());
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(found[i], narrow(values[i], dtype)) << spec << " " << values[i];
      std::vector<float> expected = values;
      for (float& value : expected) value = rounded(value, dtype);
      EXPECT_TRUE(same_values(harness.output(), expected)) << spec;
    }
  });
}

/// f16 payloads add like uncompressed f16 values. Decoded bf16 values saturate.
TEST(Cast, SumsBeyondTheRangeOfF16) {
  for_each_isa([] {
    for (const auto& [spec, sum] :
         {std::pair{"none", INFINITY}, {"f16", INFINITY}, {"bf16", 65504.0f}}) {
      CodecHarness harness(spec, {300}, {.dtype = Dtype::kF16});
      harness.set_gradient(std::vector<float>(300, -40'000.0f));
      const GuardedBytes frame = harness.encode();
      harness.decode({frame, frame});
      EXPECT_EQ(harness.output(), std::vector<float>(300, -sum)) << spec;
      harness.set_output(std::vector<float>(300, -40'000.0f));
      harness.decode({frame}, DecodeMode::kAdd);
      EXPECT_EQ(harness.output(), std::vector<float>(300, -sum)) << spec;
    }
  });
}

TEST(Cast, F16CountsOverflowsAndKeepsTheirResidual) {
  for_each_isa([] {
    CodecHarness harness("f16+ef", {70'001, 3}, {.threads = 2});
    std::vector<float> gradient = harness.gradient();
    gradient[5] = 65'520.0f;
    gradient[70'000] = -1e30f;
    gradient[6] = 65'519.0f;  // rounds to the largest f16
    gradient[7] = INFINITY;   // infinite before encoding
    harness.set_gradient(gradient);
    harness.set_residual(std::vector<float>(70'001, 0.25f));
    harness.words = {.residual_factor = 0, .overflows = 10};
    StateWords next;
    EncodeCall call = harness.encode_call();
    call.words_out = &next;
    harness.decode({harness.encode(call)});
    EXPECT_EQ(next.overflows, 12u);
    EXPECT_TRUE(std::isinf(harness.output()[5]) && std::isinf(harness.output()[70'000]));
    EXPECT_EQ(harness.output()[6], 65'504.0f);
    EXPECT_EQ(harness.residual_out()[5], 0.25f);
    EXPECT_EQ(harness.residual_out()[70'000], 0.25f);
    EXPECT_EQ(harness.residual_out()[7], 0.25f);
    EXPECT_EQ(harness.residual_out()[6], 15.0f);
  });
}

TEST(Cast, F16CountsOverflowsInReduceButNotInRawValues) {
  CodecHarness harness("f16", {4});
  harness.set_gradient({60'000.0f, 1.0f, -60'000.0f, 1e9f});
  GuardedValues raw(4, Dtype::kF32);
  StateWords next;
  EncodeCall call = harness.encode_call();
  call.words_out = &next;
  harness.codec().encode_native(call, 0.25f, raw.span());
  EXPECT_EQ(next.overflows, 0u);
  EXPECT_EQ(raw.floats(), (std::vector<float>{15'000.0f, 0.25f, -15'000.0f, 2.5e8f}));
  harness.set_gradient({60'000.0f, 1.0f, -60'000.0f, 0.0f});
  const std::vector<GuardedBytes> frames(2, harness.encode());
  ReduceCall reduce = harness.reduce_call(frames);
  reduce.words_out = &next;
  GuardedBytes target(harness.plan().frame_bytes);
  harness.codec().reduce(reduce, target.span());
  EXPECT_EQ(next.overflows, 2u);
}

TEST(Cast, NoneCountsF16OverflowsOfFeedbackAndSums) {
  for_each_isa([] {
    CodecHarness harness("none+ef", {4}, {.dtype = Dtype::kF16});
    harness.set_gradient({60'000.0f, 1.0f, -60'000.0f, INFINITY});
    harness.set_residual({6'000.0f, 0.0f, -1'000.0f, 0.0f});
    StateWords next;
    EncodeCall call = harness.encode_call();
    call.words_out = &next;
    harness.encode(call);
    EXPECT_EQ(next.overflows, 1u);

    CodecHarness sums("none", {4}, {.dtype = Dtype::kF16});
    sums.set_gradient({60'000.0f, 1.0f, -60'000.0f, INFINITY});
    const std::vector<GuardedBytes> twice(2, sums.encode());
    ReduceCall reduce = sums.reduce_call(twice);
    reduce.words_out = &next;
    GuardedBytes target(sums.plan().frame_bytes);
    sums.codec().reduce(reduce, target.span());
    EXPECT_EQ(next.overflows, 2u);
  });
}

TEST(Cast, AccumulatesInF32InFrameOrder) {
  for_each_isa([] {
    for (const auto& [spec, dtype] : {std::pair{"bf16", Dtype::kBf16}, {"f16", Dtype::kF16}}) {
      const std::size_t count = 2000;
      CodecHarness harness(spec, {count});
      std::vector<GuardedBytes> frames;
      std::vector<float> sum(count), mean(count);
      for (std::uint64_t rank = 0; rank < 3; ++rank) {
        harness.draw(rank);
        frames.push_back(harness.encode());
        const std::vector<float> gradient = harness.gradient();
        for (std::size_t i = 0; i < count; ++i) {
          const float value = rounded(gradient[i], dtype);
          sum[i] += value;
          mean[i] = rank == 0 ? value * 0.3f : std::fma(value, 0.3f, mean[i]);
        }
      }
      harness.decode(frames, DecodeMode::kAssign, 0.3f);
      EXPECT_TRUE(same_values(harness.output(), mean)) << spec;
      const std::vector<std::uint16_t> reduced = cast_values_of(harness.reduce(frames), count);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(reduced[i], narrow(sum[i], dtype)) << i;
    }
  });
}

constexpr const char* kStochastic = "bf16:rounding=stochastic";

/// The stochastic rounding of p at index i of the only segment.
std::uint16_t drawn(const CodecHarness& harness, float p, std::size_t i) {
  const Segment& segment = harness.segments[0];
  return narrow_stochastic(p, random_bits(segment.first_index + i, harness.random.key,
                                          harness.words.step, segment.parameter));
}

/// Encodes values starting at index `first` of the parameter. Compares payload and residual with
/// the reference.
void expect_drawn(const std::string& spec, Dtype dtype, std::uint64_t first) {
  std::vector<float> values;
  for (const float value : all_kinds())
    if (bits(value) % 11 == 0) values.push_back(value);
  CodecHarness harness(spec, {values.size()}, {.dtype = dtype});
  harness.segments[0].first_index = first;
  harness.words = {.step = 9, .gradient_factor = 0.3f, .residual_factor = 0.7f};
  harness.set_gradient(values);
  const std::vector<std::uint16_t> found = cast_values_of(harness.encode(), values.size());
  const std::vector<float> sent = harness.sent();
  std::vector<float> residual = harness.residual_in();
  for (std::size_t i = 0; i < sent.size(); ++i) {
    ASSERT_EQ(found[i], drawn(harness, sent[i], i)) << spec << " " << sent[i];
    const float decoded = widen(found[i], Dtype::kBf16);
    if (harness.has_states() && std::isfinite(decoded)) residual[i] = sent[i] - decoded;
  }
  EXPECT_TRUE(!harness.has_states() || same_values(harness.residual_out(), residual)) << spec;
}

TEST(Cast, StochasticRoundingMatchesReference) {
  for_each_isa([] {
    for (const char* feedback : {"", "+ef"})
      for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16})
        for (const std::uint64_t first : {1536, 1541})
          expect_drawn(kStochastic + std::string(feedback), dtype, first);
  });
}

TEST(Cast, StochasticReduceMatchesReference) {
  for_each_isa([] {
    for (const std::uint64_t first : {1536, 1541}) {
      const std::size_t count = 2000;
      CodecHarness harness(kStochastic, {count});
      harness.segments[0].first_index = first;
      std::vector<GuardedBytes> frames;
      std::vector<float> sum(count);
      for (std::uint64_t rank = 0; rank < 3; ++rank) {
        harness.draw(rank);
        frames.push_back(harness.encode());
        const std::vector<std::uint16_t> sent = cast_values_of(frames.back(), count);
        for (std::size_t i = 0; i < count; ++i) sum[i] += widen(sent[i], Dtype::kBf16);
      }
      harness.random.key = 4321;
      const std::vector<std::uint16_t> found = cast_values_of(harness.reduce(frames), count);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(found[i], drawn(harness, sum[i], i)) << i;
    }
  });
}

// The mean of 400 draws is off by about 0.016 of the distance between neighbors; nearest rounding
// is off by 0.25. The mean over all values is off by less than the bias of eight random bits,
// 1/512.
TEST(Cast, StochasticRoundingIsUnbiased) {
  const std::uint32_t draws = 400;
  CodecHarness harness(kStochastic, {4096});
  const std::vector<float> values = harness.gradient();
  std::vector<double> ups(values.size());
  const auto near = [](float value) { return from_bits(bits(value) & 0xffff0000u); };
  const auto far = [](float value) { return from_bits((bits(value) & 0xffff0000u) + 0x10000u); };
  for (std::uint32_t step = 0; step < draws; ++step) {
    harness.words.step = step;
    harness.decode({harness.encode()});
    const std::vector<float> decoded = harness.output();
    for (std::size_t i = 0; i < values.size(); ++i) {
      ups[i] += decoded[i] == far(values[i]);
      ASSERT_TRUE(decoded[i] == far(values[i]) || decoded[i] == near(values[i])) << values[i];
    }
  }
  double bias = 0, error = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double off = ups[i] / draws - (bits(values[i]) & 0xffffu) / 65536.0;
    bias += off / static_cast<double>(values.size());
    error += std::fabs(off) / static_cast<double>(values.size());
  }
  EXPECT_LT(error, 0.02);
  EXPECT_LT(std::fabs(bias), 0.0012);
}

TEST(Cast, StochasticRoundingKeepsBf16ValuesExact) {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000; high += 7) values.push_back(from_bits(high << 16));
  CodecHarness harness(kStochastic, {values.size()});
  harness.set_gradient(values);
  for (harness.words.step = 0; harness.words.step < 20; ++harness.words.step) {
    harness.decode({harness.encode()});
    EXPECT_TRUE(same_values(harness.output(), values)) << harness.words.step;
  }
}

TEST(Cast, StochasticRoundingHasNoNativeSum) {
  CodecHarness harness(kStochastic, {300});
  EXPECT_EQ(harness.plan().rounds[0].exchanges,
            (std::vector{Exchange::kTwoShot, Exchange::kGather}));
  GuardedValues raw(300, Dtype::kBf16);
  const std::string error = error_of<InvalidArgumentError>(
      [&] { harness.codec().encode_native(harness.encode_call(), 1.0f, raw.span()); });
  EXPECT_NE(error.find("a transport rounds its sums to nearest"), std::string::npos) << error;
}

}  // namespace
}  // namespace tersor::test
