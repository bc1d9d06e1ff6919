// Training of a single parameter by a reducer on one rank, for the tests of checkpoints.
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

}  // namespace tersor::testing
