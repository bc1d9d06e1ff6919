// Calls of a scenario on one rank, and the expected results.
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

/// The input of rank `rank` for a step, in [-1, 1), equal on every machine.
Values input_of(const Scenario& scenario, std::size_t step, int rank);

/// The result of a step without a fault, in double precision; empty for a barrier.
std::vector<double> exact_result(const Scenario& scenario, std::size_t step, int rank);

/// The maximum |result − exact|² for the step's codec.
double error_bound(const Scenario& scenario, std::size_t step);

/// A rank's mistake in a step.
enum class Mistake { kNone, kOtherArguments, kRefused };

/// Calls steps on a transport. The transport must outlive the caller.
class Caller {
 public:
  Caller(const Scenario& scenario, Transport& transport);
  ~Caller();

  /// Calls a step and returns the result of this rank.
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
