
#include "bench/ranks/iterations.h"

#include <algorithm>

#include "bench/common/timing.h"
#include "bench/ranks/gradients.h"

namespace tersor::bench {
namespace {

constexpr int kWarmUpIterations = 2;

/// The number of iterations in about one second, at least 5 and at most 200.
std::size_t iterations_for(double seconds) {
  return static_cast<std::size_t>(std::clamp(1.0 / std::max(seconds, 1e-9), 5.0, 200.0));
}

IterationTimes medians_of(const std::vector<std::vector<IterationTimes>>& per_rank,
                          Algorithm algorithm) {
  const auto median_of = [&](auto field) {
    std::vector<std::vector<double>> values;
    for (const std::vector<IterationTimes>& calls : per_rank) {
      values.emplace_back();
      for (const IterationTimes& call : calls)
        values.back().push_back(static_cast<double>(call.*field));
    }
    return median_of_slowest(values);
  };
  IterationTimes medians;
  medians.algorithm = algorithm;
  medians.sent_bytes = static_cast<std::uint64_t>(median_of(&IterationTimes::sent_bytes));
  constexpr double IterationTimes::*kTimes[] = {
      &IterationTimes::seconds, &IterationTimes::part_seconds, &IterationTimes::wire_seconds,
      &IterationTimes::encode_seconds, &IterationTimes::decode_seconds};
  for (const auto field : kTimes) medians.*field = median_of(field);
  return medians;
}

}  // namespace

IterationTimes RankCall::times(double seconds, double part_seconds) const {
  IterationTimes times{statistics(), part_seconds};
  times.seconds = seconds;
  return times;
}

IterationTimes RankCall::time() {
  const Stopwatch watch;
  call();
  return times(watch.seconds());
}

IterationTimes time_iteration(RankCall& caller, Rank& rank) {
  caller.restore();
  rank.barrier();
  const IterationTimes time = caller.time();
  if (caller.waits_after_call()) rank.barrier();
  return time;
}

std::size_t warm_up(std::span<RankCall* const> callers, Rank& rank, std::size_t iterations) {
  double seconds = 0;
  for (int round = 0; round < kWarmUpIterations; ++round) {
    seconds = 0;
    for (RankCall* caller : callers) seconds += time_iteration(*caller, rank).seconds;
  }
  const double each = seconds / static_cast<double>(callers.size());
  return rank.from_rank0(iterations == 0 ? iterations_for(each) : iterations);
}

std::vector<IterationTimes> time_iterations(std::span<RankCall* const> callers, Rank& rank,
                                            std::size_t iterations) {
  std::vector<std::vector<IterationTimes>> calls(callers.size());
  for (std::size_t i = 0; i < iterations; ++i)
    for (std::size_t which = 0; which < callers.size(); ++which)
      calls[which].push_back(time_iteration(*callers[which], rank));
  std::vector<IterationTimes> times;
  for (std::size_t which = 0; which < callers.size(); ++which)
    times.push_back(medians_of(rank.gather(std::span<const IterationTimes>(calls[which])),
                               callers[which]->statistics().algorithm));
  return times;
}

IterationTimes time_iterations(RankCall& caller, Rank& rank, std::size_t iterations) {
  RankCall* const one[] = {&caller};
  return time_iterations(one, rank, warm_up(one, rank, iterations)).front();
}

}  // namespace tersor::bench
