// One rank's calls of a scenario, and what they have to yield.
#pragma once

#include <tersor/reducer.h>
#include <tersor/transport.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "tests/faults/scenario.h"

namespace tersor::faults {

using Values = std::vector<float>;

/// Values that rank `rank` brings to a step, in [-1, 1); the same on every machine.
Values input_of(const Scenario& scenario, std::size_t step, int rank);

/// What a sound rank has after a step, in double precision; empty for a barrier.
std::vector<double> exact_result(const Scenario& scenario, std::size_t step, int rank);

/// The largest |result − exact|² that the step's codec may leave.
double error_bound(const Scenario& scenario, std::size_t step);

/// How a rank calls a step that it gets wrong.
enum class Mistake { kNone, kOtherArguments, kRefused };

/// Calls steps on one transport, which outlives it.
class Caller {
 public:
  Caller(const Scenario& scenario, Transport& transport);
  ~Caller();

  /// Calls a step and returns what this rank has then.
  Values call(std::size_t step, Mistake mistake = Mistake::kNone);

 private:
  Values call_collective(const Step& step, const Values& input);
  void call_collective(const Step& step, ValueSpan values, ValueSpan result);
  Values call_raw(const Step& step, const Values& input);
  Values call_reducer(const Values& input, Mistake mistake);
  void make_reducer(Mistake mistake);

  const Scenario& scenario_;
  Transport& transport_;
  std::vector<Values> gradients_;  // of the reducer's parameters
  std::unique_ptr<GradientReducer> reducer_;
};

}  // namespace tersor::faults
