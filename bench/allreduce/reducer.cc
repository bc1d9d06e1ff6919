// Implements measure_reducer.

#include <tersor/reducer.h>

#include <algorithm>
#include <string>

#include "bench/allreduce/reducer.h"

namespace tersor::bench {
namespace {

/// The maximum over ranks of a sum over all steps, per step.
template <typename Field>
double largest_a_step(Rank& rank, const ReducerStatistics& statistics, Field field) {
  return rank.maximum(static_cast<double>(statistics.*field) /
                      static_cast<double>(statistics.steps));
}

CallResult measure_rank(const CollectiveCase& config, const BackwardPass& pass,
                        const RankGradients& gradients, Rank& rank) {
  ReducerRank caller(config, pass, gradients.of(rank.index()), rank.transport());
  GradientReducer& reducer = caller.reducer();
  time_iteration(caller, rank);  // the reducer also learns the order of parameters
  const std::string codec = reducer.parameter_statistics().front().codec;
  const double error = check_reduced(gradients, rank, codec, caller.gradient());
  RankCall* const callers[] = {&caller};
  const std::size_t steps = warm_up(callers, rank, config.iterations);
  reducer.reset_statistics();
  rank.barrier();
  const IterationTimes times = time_iterations(callers, rank, steps).front();
  const ReducerStatistics all = reducer.statistics(),
                          first = reducer.parameter_statistics().front();
  CallResult result{times, first.codec, error, reducer.explain()};
  result.algorithm = first.algorithm;
  using Statistics = ReducerStatistics;
  result.sent_bytes =
      static_cast<std::uint64_t>(largest_a_step(rank, all, &Statistics::sent_bytes));
  result.wire_seconds = largest_a_step(rank, all, &Statistics::wire_seconds);
  result.encode_seconds = largest_a_step(rank, all, &Statistics::encode_seconds);
  result.decode_seconds = largest_a_step(rank, all, &Statistics::decode_seconds);
  return result;
}

}  // namespace

CallResult measure_reducer(Fleet& fleet, const CollectiveCase& config, const BackwardPass& pass,
                           const RankGradients& gradients) {
  return measure_on(fleet, [&](Rank& rank) { return measure_rank(config, pass, gradients, rank); });
}

}  // namespace tersor::bench
