// Allocation compared with an exhaustive search, at its limits, and with real codecs.
#include "comm/reducer/rules.h"
#include "tests/support/errors.h"

#include <gtest/gtest.h>
#include <tersor/allocate.h>
#include <tersor/codec.h>
#include <tersor/error.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace tersor {
namespace {

using Parameters = std::vector<AllocationParameter>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Random integers, so sums are exact. More bytes may have a larger error.
Parameters random_parameters(std::mt19937& engine) {
  const auto draw = [&](unsigned least, unsigned most) {
    return least + engine() % (most - least);
  };
  Parameters parameters(draw(1, 5));
  for (AllocationParameter& one : parameters) {
    one = {.name = "p", .count = draw(1, 20), .energy = 1000, .candidates = {}};
    for (std::size_t i = draw(1, 6); i > 0; --i)
      one.candidates.push_back({"none", draw(1, 60), static_cast<double>(draw(0, 1000))});
  }
  return parameters;
}

struct Total {
  std::size_t bytes = 0;
  double lost = 0;
};

/// The totals of all combinations.
std::vector<Total> totals_of(const Parameters& parameters) {
  std::vector<Total> totals = {{}};
  for (const AllocationParameter& one : parameters) {
    std::vector<Total> longer;
    for (const Total& total : totals)
      for (const AllocationCandidate& candidate : one.candidates)
        longer.push_back({total.bytes + candidate.bytes, total.lost + candidate.energy_lost});
    totals = longer;
  }
  return totals;
}

double bits_of(std::size_t bytes, const Parameters& parameters) {
  std::size_t count = 0;
  for (const AllocationParameter& one : parameters) count += one.count;
  return 8 * static_cast<double>(bytes) / static_cast<double>(count);
}

// Greedy steps pass through every total minimizing the cost for some price per byte.
TEST(Allocate, IsOptimalAtHullCornersAndNoWorseThanLowerCorners) {
  std::mt19937 engine(1);
  for (int round = 0; round < 300; ++round) {
    const Parameters parameters = random_parameters(engine);
    const std::vector<Total> totals = totals_of(parameters);
    std::vector<Total> corners;
    for (double price = 0.01; price < 2000; price *= 1.5) {
      const auto costs = [&](const Total& t) {
        return t.lost + price * static_cast<double>(t.bytes);
      };
      corners.push_back(*std::ranges::min_element(totals, {}, costs));
    }
    for (const Total& corner : corners)
      EXPECT_EQ(allocate(parameters, bits_of(corner.bytes, parameters)).energy_lost, corner.lost);
    for (const Total& budget : totals) {
      const Allocation found = allocate(parameters, bits_of(budget.bytes, parameters));
      ASSERT_LE(found.bytes, budget.bytes);
      for (const Total& corner : corners)
        if (corner.bytes <= budget.bytes) ASSERT_LE(found.energy_lost, corner.lost);
    }
  }
}

TEST(Allocate, ReportsChoicesBytesEnergyAndRules) {
  const Parameters parameters = {{"a", 100, 50, {{"none", 400, 0}, {"int8", 104, 1}}},
                                 {"b[0].*", 100, 70, {{"bf16", 200, 2}, {"int8", 104, 9}}}};
  const Allocation found = allocate(parameters, 8 * 304 / 200.0);
  EXPECT_EQ(found.chosen, (std::vector<std::size_t>{1, 0}));
  EXPECT_EQ(found.bytes, 304u);
  EXPECT_EQ(found.energy, 120);
  EXPECT_EQ(found.energy_lost, 3);
  EXPECT_DOUBLE_EQ(found.bits(), 12.16);

  const ReducerOptions options{.rules = found.rules};
  Rules rules(options);
  const auto codec_of = [&](std::string_view name) {
    return rules.choose({.name = name, .count = 100}).codec->spec().text();
  };
  EXPECT_EQ(codec_of("a"), "int8");
  EXPECT_EQ(codec_of("b[0].*"), "bf16");
  EXPECT_EQ(found.rules[1].pattern, "b\\[0].\\*");
  EXPECT_EQ(codec_of("b0.bias"), "bf16") << "by the last rule";
}

// The hull alone would use 40 bytes.
TEST(Allocate, UsesCandidatesOffTheHullToFillTheBudget) {
  const Parameters one = {{"w", 8, 9, {{"a", 100, 0}, {"b", 50, 6}, {"c", 40, 7}}}};
  EXPECT_EQ(allocate(one, 50).bytes, 50u);
  EXPECT_EQ(allocate(one, 49).bytes, 40u);
}

TEST(Allocate, RejectsBudgetBelowMinimumAndReportsMinimum) {
  const Parameters parameters = {{"a", 7, 1, {{"none", 28, 0}, {"int8", 16, 1}}},
                                 {"b", 6, 1, {{"int8", 16, 1}}}};
  for (const double bits : {19.0, 0.0, -1.0, kNan}) {
    const std::string said =
        test::error_of<InvalidArgumentError>([&] { allocate(parameters, bits); });
    ASSERT_NE(said.find("give at least 19.692308"), std::string::npos) << said;
  }
  EXPECT_EQ(allocate(parameters, 19.692308).bytes, 32u);
  EXPECT_EQ(allocate(parameters, 1e9).bytes, 44u);
  EXPECT_EQ(allocate(parameters, INFINITY).bytes, 44u);
}

TEST(Allocate, RejectsEmptyInputAndUnusableCandidates) {
  EXPECT_NE(test::error_of<InvalidArgumentError>([] { allocate({}, 2); }).find("no values"),
            std::string::npos);
  const Parameters lost = {{"w", 4, 1, {{"f16", 8, INFINITY}, {"int8", 16, kNan}}}};
  EXPECT_NE(test::error_of<InvalidArgumentError>([&] { allocate(lost, 32); }).find("\"w\""),
            std::string::npos);
}

TEST(Allocate, UsesFewestBytesForZeros) {
  const Parameters zeros = {{"w", 4, 0, {{"none", 16, 0}, {"bf16", 8, 0}, {"int8", 16, 0}}}};
  EXPECT_EQ(allocate(zeros, 32).chosen.front(), 1u);
}

AllocationParameter measured(std::size_t rows, std::size_t columns,
                             const std::vector<std::string>& codecs = allocation_codecs()) {
  std::vector<float> values(rows * std::max<std::size_t>(columns, 1));
  std::mt19937 engine(3);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(engine);
  return measure_candidates({"w", values, rows, columns}, codecs);
}

TEST(AllocationCandidates, IncludeLowrankOnlyForMatrices) {
  const AllocationParameter matrix = measured(256, 256), vector = measured(1 << 16, 0);
  EXPECT_EQ(matrix.candidates.size(), allocation_codecs().size());
  EXPECT_EQ(vector.candidates.size(), allocation_codecs().size() - 4) << "no lowrank";
  for (const AllocationCandidate& one : matrix.candidates) {
    const double lost = one.energy_lost / matrix.energy;
    if (one.codec == "none") EXPECT_EQ(lost, 0);
    if (one.codec == "hadamard:bits=2+ef") EXPECT_NEAR(lost, 0.119, 0.003);
    if (one.codec == "lowrank:rank=4,values=bf16+ef")
      EXPECT_EQ(one.bytes, 256u * 4 * 4 + 256 * 4 * 2);
  }
  const Parameters both = {matrix, vector};
  EXPECT_LE(allocate(both, 2).bits(), 2);
}

TEST(AllocationCandidates, AccumulateSamplesAndRejectMismatchedOnes) {
  AllocationParameter sum = measured(8, 16, {"int8", "bf16"});
  const AllocationParameter sample = sum;
  add_sample(sum, sample);
  EXPECT_EQ(sum.energy, 2 * sample.energy);
  EXPECT_EQ(sum.candidates[1].energy_lost, 2 * sample.candidates[1].energy_lost);
  EXPECT_EQ(sum.candidates[0].bytes, sample.candidates[0].bytes);
  for (const AllocationParameter& other :
       {measured(8, 15, {"int8", "bf16"}), measured(8, 16, {"int8", "none"})})
    EXPECT_NE(test::error_of<InvalidArgumentError>([&] { add_sample(sum, other); }).find("\"w\""),
              std::string::npos);
}

TEST(AllocationCandidates, RejectNaNInputAndSkipOverflowingCodecs) {
  const std::vector<std::string> codecs = {"f16", "none"};
  const std::vector<float> large = {1e6f, 1}, broken = {1, NAN};
  const AllocationParameter found = measure_candidates({"w", large, 2, 0}, codecs);
  EXPECT_EQ(allocate(Parameters{found}, 64).rules.front().codec, "none");
  const std::string said = test::error_of<InvalidArgumentError>([&] {
    measure_candidates({"w", broken, 2, 0}, codecs);
  });
  EXPECT_NE(said.find("\"w\" contains a NaN"), std::string::npos) << said;
}

}  // namespace
}  // namespace tersor
