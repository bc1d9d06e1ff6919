// lowrank with linearly dependent columns of P: matrices with few non-zero rows or with repeated
// rows. No direction counts twice, at any scale.

#include "tests/support/codec_conformance.h"
#include "tests/support/grid.h"
#include "tests/support/native_rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace tersor::test {
namespace {

using Values = std::vector<float>;

constexpr std::size_t kRows = 128, kColumns = 96, kDependentCount = kRows * kColumns;

NativeRounds rounds_of(const std::string& spec, std::size_t ranks = 1) {
  return NativeRounds(spec, {kDependentCount}, {.contributions = ranks, .rows = kRows});
}

/// `rows` random rows, each repeated `repeats` times. Every fourth column is zero.
Values of_rows(std::size_t rows, std::size_t repeats, float scale) {
  const Values drawn = gaussian(kDependentCount, 3 + rows, scale);
  Values values(kDependentCount);
  for (std::size_t i = 0; i < rows * repeats; ++i)
    for (std::size_t c = 0; c < kColumns; ++c)
      if (c % 4 != 0)
        values[(7 * i + 2) % kRows * kColumns + c] = drawn[i / repeats * kColumns + c];
  return values;
}

/// The mean of ranks with equal gradients.
Values mean_of(NativeRounds& rounds, const Values& gradient) {
  for (CodecHarness& rank : rounds.ranks) rank.set_gradient(gradient);
  rounds.exchange({.encode_factor = 1.0f / static_cast<float>(rounds.ranks.size())});
  return rounds.ranks[0].output();
}

TEST(LowrankDependent, ReconstructsTwoNonZeroEntries) {
  Values gradient(kDependentCount);
  gradient[3 * kColumns + 5] = gradient[7 * kColumns + 11] = 1.0f;
  for_each_isa([&] {
    NativeRounds rounds = rounds_of("lowrank:rank=8");
    EXPECT_LT(distance(mean_of(rounds, gradient), gradient), 1e-5);
  });
}

TEST(LowrankDependent, ResultNormDoesNotExceedGradientNorm) {
  for (const std::string spec : {"lowrank:rank=8", "lowrank:rank=8,values=bf16"})
    for (const float scale : {1.0f, 1e-30f, 1e-34f, 1e30f, 1e36f})
      for (std::size_t rows = 0; rows <= 9; ++rows)
        for (const std::size_t repeats : {1, 5}) {
          if (grid_is_small() && (rows + repeats) % 3 != 0) continue;
          NativeRounds rounds = rounds_of(spec, rows % 2 + 1);
          const Values gradient = of_rows(rows, repeats, scale);
          for (int step = 0; step < 3; ++step) {
            const double length = norm_of(mean_of(rounds, gradient));
            ASSERT_LE(length, 1.005 * norm_of(gradient))
                << spec << " " << scale << " " << rows << " " << repeats << " " << step;
          }
        }
}

TEST(LowrankDependent, ReconstructsFewDistinctRows) {
  for (const float scale : {1.0f, 1e-30f, 1e36f})
    for (std::size_t rows = 1; rows <= 8; ++rows)
      for (const std::size_t repeats : {1, 5}) {
        if (grid_is_small() && (rows + repeats) % 3 != 0) continue;
        NativeRounds rounds = rounds_of("lowrank:rank=8", 2);
        const Values gradient = of_rows(rows, repeats, scale);
        for (int step = 0; step < 3; ++step)
          ASSERT_LT(distance(mean_of(rounds, gradient), gradient), 1e-4 * norm_of(gradient))
              << scale << " " << rows << " " << repeats << " " << step;
      }
}

// The sum of all results for a constant gradient equals the number of steps times the gradient,
// except for one residual.
TEST(LowrankDependent, FeedbackBoundsAccumulatedError) {
  constexpr int kSteps = 24;
  for (const std::size_t rows : {2, 8, 20}) {
    NativeRounds rounds = rounds_of("lowrank:rank=8+ef", 2);
    for (CodecHarness& rank : rounds.ranks) {
      rank.words = {};
      rank.set_residual(Values(kDependentCount));
      rank.share_residuals();
    }
    const Values gradient = of_rows(rows, 2, 1.0f);
    Values missing(kDependentCount);
    for (int step = 0; step < kSteps; ++step) {
      const Values mean = mean_of(rounds, gradient);
      for (std::size_t i = 0; i < kDependentCount; ++i) missing[i] += gradient[i] - mean[i];
    }
    EXPECT_LT(norm_of(missing), 3 * norm_of(gradient)) << rows;
  }
}

}  // namespace
}  // namespace tersor::test
