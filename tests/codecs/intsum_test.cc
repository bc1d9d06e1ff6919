// intsum compared with a reference written from its header alone, and properties of intsum only.
// Sums are independent of the order and within the accumulator range, and residuals are exact.

#include "tests/support/codec_conformance.h"
#include "tests/support/native_rounds.h"
#include "tests/support/reference.h"

#include <tersor/align.h>
#include <tersor/codecs/intsum.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

namespace tersor::test {
namespace {

constexpr std::size_t kBlock = IntsumLayout::kBlock;

struct IntsumCase {
  std::string spec;
  IntsumOptions options;
};

/// Fixed scales. Most of these scales clip normally distributed values.
constexpr const char* kScaleKeys[] = {"", ",scale=0.015625", ",scale=0.0001220703125"};

/// Cases with scales from the ranks' maxima.
std::vector<IntsumCase> cases(const std::string& suffix = "") {
  std::vector<IntsumCase> all;
  for (const AccumulatorBits accumulator_bits :
       {AccumulatorBits::k8, AccumulatorBits::k16, AccumulatorBits::k32})
    for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
      const std::string name = rounding == Rounding::kNearest ? "nearest" : "stochastic";
      all.push_back({"intsum:bits=" + std::to_string(static_cast<int>(accumulator_bits)) +
                         ",rounding=" + name + suffix,
                     {accumulator_bits, rounding}});
    }
  return all;
}

/// Cases with scales from the maxima and with fixed scales.
std::vector<IntsumCase> all_cases(const std::string& suffix = "") {
  std::vector<IntsumCase> all = cases(suffix);
  for (IntsumCase one : cases()) {
    const bool is_narrow = one.options.accumulator_bits == AccumulatorBits::k8;
    one.options.scale = is_narrow ? 0x1p-6f : 0x1p-13f;
    one.spec += kScaleKeys[is_narrow ? 1 : 2] + suffix;
    all.push_back(one);
  }
  return all;
}

/// Raw values as codes or sums of codes, for one segment of `count` values.
std::vector<long> codes_of(ConstValueSpan values, std::size_t count,
                           AccumulatorBits accumulator_bits) {
  std::vector<long> codes(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (accumulator_bits == AccumulatorBits::k8) codes[i] = numbers<std::int8_t>(values)[i];
    if (accumulator_bits == AccumulatorBits::k32) codes[i] = numbers<std::int32_t>(values)[i];
    if (accumulator_bits != AccumulatorBits::k16) continue;
    const auto word = static_cast<std::int32_t>(numbers<std::uint32_t>(values)[i / 2]);
    const auto low = static_cast<std::int16_t>(word & 0xffff);
    codes[i] = i % 2 == 0 ? low : static_cast<std::int16_t>((word - low) >> 16);
  }
  return codes;
}

/// The expected codes and residuals of a rank for a single segment, by the header's formulas.
struct Expected {
  std::vector<long> codes;
  std::vector<float> residual;
};

std::vector<float> expected_scales(const NativeRounds& rounds, std::size_t levels, float factor,
                                   float known) {
  std::vector<float> most(ceil_div(rounds.ranks[0].segments[0].count, kBlock));
  if (known != 0) return std::vector<float>(most.size(), known);
  for (const CodecHarness& rank : rounds.ranks) {
    const std::vector<float> p = rank.sent();
    for (std::size_t i = 0; i < p.size(); ++i)
      most[i / kBlock] = std::max(most[i / kBlock], std::fabs(p[i]) * factor);
  }
  for (float& scale : most) {
    scale = scale / static_cast<float>(levels);
    if (scale < 0x1p-100f) scale = 0;
  }
  return most;
}

Expected expected_of(const CodecHarness& rank, const std::vector<float>& scales, float factor,
                     Rounding rounding, long levels) {
  const std::vector<float> p = rank.sent();
  Expected expected{std::vector<long>(p.size()), p};
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (scales[i / kBlock] == 0) continue;
    const float own = scales[i / kBlock] / factor;
    const double ratio = static_cast<double>(p[i]) * static_cast<float>(1.0 / own);
    const std::uint32_t noise =
        random_byte(i, rank.random.key, rank.words.step, rank.segments[0].parameter);
    const long code = rounding == Rounding::kNearest
                          ? std::lrint(ratio)
                          : std::lrint(std::floor((std::nearbyint(ratio * 256) + noise) / 256));
    expected.codes[i] = std::clamp(code, -levels, levels);
    expected.residual[i] = p[i] - static_cast<float>(expected.codes[i]) * own;
  }
  return expected;
}

void expect_numbers_of_the_format(const IntsumCase& one, Dtype dtype, float factor) {
  constexpr std::size_t kCount = 1027, kRanks = 3;
  NativeRounds rounds(one.spec, {kCount}, {.dtype = dtype, .contributions = kRanks});
  rounds.exchange({.encode_factor = factor, .decode_factor = 0.5f});
  const std::size_t levels = intsum_levels(one.options, kRanks);
  const std::vector<float> scales = expected_scales(rounds, levels, factor, one.options.scale);
  std::vector<long> sums(kCount);
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const Expected expected = expected_of(rounds.ranks[rank], scales, factor, one.options.rounding,
                                          static_cast<long>(levels));
    EXPECT_EQ(codes_of(rounds.raw.back()[rank].span(), kCount, one.options.accumulator_bits),
              expected.codes);
    EXPECT_TRUE(same_values(rounds.ranks[rank].residual_out(), expected.residual));
    for (std::size_t i = 0; i < kCount; ++i) sums[i] += expected.codes[i];
  }
  std::vector<float> outputs(kCount);
  for (std::size_t i = 0; i < kCount; ++i)
    outputs[i] = decoded_as(static_cast<float>(sums[i]) * (scales[i / kBlock] * 0.5f), dtype);
  for (const CodecHarness& rank : rounds.ranks) EXPECT_TRUE(same_values(rank.output(), outputs));
  EXPECT_TRUE(rounds.intact());
}

TEST(Intsum, MatchesReferenceValues) {
  for_each_isa([] {
    for (const IntsumCase& one : all_cases("+ef"))
      for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16})
        for (const float factor : {1.0f, 1.0f / 3}) {
          SCOPED_TRACE(one.spec + " " + std::string(dtype_name(dtype)));
          expect_numbers_of_the_format(one, dtype, factor);
        }
  });
}

TEST(Intsum, ResultPlusResidualsEqualsSumOfRanks) {
  for (const IntsumCase& one : all_cases("+ef"))
    for (const float factor : {1.0f, 0.2f}) {
      SCOPED_TRACE(one.spec);
      NativeRounds rounds(one.spec, {700, 0, 301}, {.contributions = 5});
      rounds.exchange({.encode_factor = factor, .decode_factor = 1 / factor});
      for (const std::size_t segment : {0, 2}) {
        std::vector<double> missing(rounds.ranks[0].segments[segment].count);
        for (std::size_t i = 0; i < missing.size(); ++i) {
          missing[i] = -rounds.ranks[0].output(segment)[i];
          for (const CodecHarness& rank : rounds.ranks)
            missing[i] += double{rank.sent(segment)[i]} - rank.residual_out(segment)[i];
          ASSERT_NEAR(missing[i], 0, 1e-5) << i;
        }
      }
    }
}

/// True if the sum over a random tree of the ranks equals `expected`.
bool random_sum_is(const GuardedValues& expected, std::vector<GuardedValues> parts,
                   std::mt19937_64& random) {
  std::vector<std::size_t> left(parts.size());
  std::iota(left.begin(), left.end(), 0);
  while (left.size() > 1) {
    std::ranges::shuffle(left, random);
    combine(Exchange::kNativeSum, parts[left[0]].span(), parts[left.back()].span());
    left.pop_back();
  }
  return same_bytes(parts[left[0]].bytes(), expected.bytes());
}

TEST(Intsum, SumIsIndependentOfOrderAndTopology) {
  for (const IntsumCase& one : all_cases()) {
    NativeRounds rounds(one.spec, {301}, {.contributions = 13});
    rounds.exchange();
    std::mt19937_64 random(1);
    for (int iteration = 0; iteration < 1'000; ++iteration)
      ASSERT_TRUE(random_sum_is(rounds.combined.back(), rounds.raw.back(), random))
          << one.spec << iteration;
  }
}

/// Values near the limits of the accumulators: the largest values of all ranks have equal signs and
/// the same index.
std::vector<float> extreme_values(std::size_t count, std::uint64_t seed) {
  std::vector<float> values = gaussian(count, seed);
  for (std::size_t i = 0; i < count; ++i) {
    const float most =
        from_bits(0x3f000000u + static_cast<std::uint32_t>(mixed(i / kBlock + seed / 8) >> 41));
    if (i % 3 != 0) values[i] = i % 2 == 0 ? most : -most;
    if (i / kBlock % 3 == 1) values[i] *= 3e38f / most;
  }
  return values;
}

TEST(Intsum, SumsNeverOverflowAccumulators) {
  for (const IntsumCase& one : all_cases())
    for (const std::size_t ranks : {1, 2, 7, 127})
      for (const float factor : {1.0f, 1.0f / 3, 0.7f}) {
        constexpr std::size_t kCount = 5 * kBlock;
        const auto levels = static_cast<long>(intsum_levels(one.options, ranks));
        NativeRounds rounds(one.spec, {kCount}, {.contributions = ranks});
        for (std::size_t i = 0; i < ranks; ++i)
          rounds.ranks[i].set_gradient(extreme_values(kCount, i % 3));
        rounds.exchange({.encode_factor = factor});
        std::vector<long> sums(kCount);
        for (const GuardedValues& raw : rounds.raw.back()) {
          const std::vector<long> codes =
              codes_of(raw.span(), kCount, one.options.accumulator_bits);
          for (std::size_t i = 0; i < kCount; ++i) {
            ASSERT_LE(std::abs(codes[i]), levels) << one.spec << " of " << ranks;
            sums[i] += codes[i];
          }
        }
        ASSERT_LE(static_cast<long>(ranks) * levels,
                  static_cast<long>(intsum_most(one.options.accumulator_bits)));
        EXPECT_EQ(codes_of(rounds.combined.back().span(), kCount, one.options.accumulator_bits),
                  sums);
      }
}

TEST(Intsum, LargestValueGetsLargestCode) {
  for (const IntsumCase& one : all_cases()) {
    NativeRounds rounds(one.spec, {kBlock}, {.contributions = 2});
    const auto levels = static_cast<long>(intsum_levels(one.options, 2));
    for (CodecHarness& rank : rounds.ranks) rank.set_gradient(std::vector<float>(kBlock, -300.7f));
    rounds.exchange();
    EXPECT_EQ(codes_of(rounds.combined.back().span(), kBlock, one.options.accumulator_bits),
              std::vector<long>(kBlock, -2 * levels));
  }
}

TEST(Intsum, NonFiniteValuePoisonsBlockOnAllRanks) {
  for (const IntsumCase& one : all_cases("+ef"))
    for (const float bad : {std::nanf(""), -std::nanf("7"), INFINITY, -INFINITY}) {
      NativeRounds rounds(one.spec, {3 * kBlock + 5}, {.contributions = 3});
      std::vector<float> gradient = rounds.ranks[1].gradient();
      gradient[kBlock + 3] = bad;
      rounds.ranks[1].set_gradient(gradient);
      rounds.exchange();
      const bool is_nan = std::isnan(bad);
      if (one.options.scale == 0)
        EXPECT_EQ(numbers<std::uint32_t>(rounds.combined[0].span())[1],
                  is_nan ? 0x7fc00000 : 0x7f800000);
      for (const CodecHarness& rank : rounds.ranks)
        for (std::size_t i = 0; i < 3 * kBlock + 5; ++i) {
          const bool poisoned = i / kBlock == 1;
          ASSERT_EQ(std::isnan(rank.output()[i]), poisoned) << i;
          const bool is_told = one.options.scale == 0 || &rank == &rounds.ranks[1];
          if (poisoned && is_told) ASSERT_EQ(rank.residual_out()[i], rank.residual_in()[i]) << i;
          ASSERT_TRUE(std::isfinite(rank.residual_out()[i])) << i;
        }
    }
}

TEST(Intsum, ResidualKeepsTinyBlocks) {
  NativeRounds rounds("intsum+ef", {300}, {.scale = 0x1p-110f, .contributions = 2});
  rounds.exchange();
  EXPECT_EQ(rounds.ranks[0].output(), std::vector<float>(300, 0.0f));
  EXPECT_TRUE(same_values(rounds.ranks[0].residual_out(), rounds.ranks[0].sent()));
}

TEST(Intsum, StochasticRoundingIsUnbiased) {
  NativeRounds rounds("intsum:rounding=stochastic", {2000}, {.contributions = 1});
  CodecHarness& rank = rounds.ranks[0];
  std::vector<double> mean(2000);
  for (std::uint32_t draw = 0; draw < 400; ++draw) {
    rank.words.step = draw;
    rounds.exchange();
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += rank.output()[i] / 400.0;
  }
  double error = 0;
  for (std::size_t i = 0; i < mean.size(); ++i)
    error += std::fabs(mean[i] - rank.gradient()[i]) / static_cast<double>(mean.size());
  EXPECT_LT(error, 0.03 * 3.5 / 127);
}

TEST(Intsum, ErrorIsBoundedByOneStepPerRank) {
  for (const IntsumCase& one : cases()) {
    constexpr std::size_t kRanks = 4;
    NativeRounds rounds(one.spec, {7919}, {.contributions = kRanks});
    rounds.exchange();
    const double step = one.options.rounding == Rounding::kNearest ? 0.5 : 1.0;
    const auto levels = static_cast<double>(intsum_levels(one.options, kRanks));
    std::vector<double> missing(7919);
    const std::vector<float> output = rounds.ranks[0].output();
    for (const CodecHarness& rank : rounds.ranks) {
      const std::vector<float> gradient = rank.gradient();
      for (std::size_t i = 0; i < missing.size(); ++i) missing[i] += gradient[i];
    }
    for (std::size_t i = 0; i < missing.size(); ++i)
      ASSERT_NEAR(output[i], missing[i], kRanks * step * 5 / levels + 1e-5) << one.spec;
  }
}

}  // namespace
}  // namespace tersor::test
