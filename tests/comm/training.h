// Training of a single parameter by a reducer on one rank, for tests of residuals and checkpoints.
#pragma once

#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace tersor::testing {

inline constexpr std::size_t kCount = 20000;

/// A rank's reducer with a parameter and the result of each step.
struct Training {
  Training(Transport& transport, const ReducerOptions& options)
      : rank(transport.rank()), gradient(kCount), reducer(transport, options) {
    reducer.add("w", gradient, 100, 200);
  }

  const Values& step(int index) {
    const Values values = gaussian(kCount, static_cast<std::uint64_t>(index * 100 + rank));
    std::copy(values.begin(), values.end(), gradient.begin());
    reducer.ready("w");
    reducer.wait();
    return gradient;
  }

  // A step with zero gradients. The result is a part of the retained residuals.
  const Values& empty_step() {
    std::fill(gradient.begin(), gradient.end(), 0.0f);
    reducer.ready("w");
    reducer.wait();
    return gradient;
  }

  int rank;
  Values gradient;
  GradientReducer reducer;
};

// The sum of all results of empty steps: the residuals owed after the last real step.
inline std::vector<double> drain(Training& run) {
  std::vector<double> rest(kCount, 0.0);
  for (int i = 0; i < 400; ++i) {
    const Values& values = run.empty_step();
    double largest = 0;
    for (std::size_t j = 0; j < kCount; ++j) {
      rest[j] += values[j];
      largest = std::max(largest, std::abs(static_cast<double>(values[j])));
    }
    if (largest == 0) break;
  }
  return rest;
}

/// Expects that the results of four sums and the drained residuals add up to the inputs.
inline void expect_loses_nothing(int ranks, ReducerOptions options) {
  options.reduction = Reduction::kSum;
  std::vector<double> wanted(kCount, 0.0);
  for (int step = 0; step < 4; ++step)
    for (int rank = 0; rank < ranks; ++rank) {
      const Values values = gaussian(kCount, static_cast<std::uint64_t>(step * 100 + rank));
      for (std::size_t i = 0; i < kCount; ++i) wanted[i] += values[i];
    }
  run_ranks(ranks, {}, [&](Transport& transport) {
    Training run(transport, options);
    std::vector<double> found(kCount, 0.0);
    for (int step = 0; step < 4; ++step) {
      const Values& sum = run.step(step);
      for (std::size_t i = 0; i < kCount; ++i) found[i] += sum[i];
    }
    const auto rest = drain(run);
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_NEAR(found[i] + rest[i], wanted[i], 2e-3) << i;
  });
}

/// Expects that a second reducer continues a saved run with the same bits.
inline void expect_goes_on(int ranks, const ReducerOptions& options) {
  run_ranks(ranks, {}, [&](Transport& transport) {
    Training first(transport, options);
    for (int step = 0; step < 3; ++step) first.step(step);
    Training second(transport, options);
    second.reducer.load_state(first.reducer.save_state());
    for (int step = 3; step < 6; ++step) {
      const Values wanted = first.step(step);
      EXPECT_EQ(second.step(step), wanted) << step;
    }
    EXPECT_EQ(second.reducer.save_state(), first.reducer.save_state());
  });
}

}  // namespace tersor::testing
