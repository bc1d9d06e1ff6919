// Ranks that train nothing: their backward pass is a sleep, which takes no core from the
// codecs, and at equal intervals one parameter after the other is ready for the GradientReducer.

#include <fmt/format.h>
#include <tersor/align.h>
#include <tersor/reducer.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "bench/allreduce_case.h"
#include "bench/timing.h"

namespace tersor::bench {
namespace {

constexpr int kWarmUpSteps = 2;

/// Seconds of one step.
struct StepTimes {
  double step = 0;
  double exposed = 0;  // in wait()
};

/// One rank's gradients and reducer.
class ReducerRank {
 public:
  ReducerRank(const AllreduceCase& wanted, const BackwardPass& pass, ConstValueSpan input,
              Transport& transport)
      : pass_(pass),
        input_(input),
        storage_(input.bytes()),
        reducer_(transport, {.rules = {{"*", wanted.codec}},
                             .automatic = wanted.automatic,
                             .reduction = Reduction::kSum,
                             .algorithm = wanted.algorithm,
                             .chunk_count = wanted.chunk_count,
                             .checksum = wanted.checksum,
                             .threads = wanted.threads}) {
    const std::size_t each = ceil_div(input.count(), pass.parameters);
    for (std::size_t first = 0; first < input.count(); first += each) {
      names_.push_back(fmt::format("parameter{}", names_.size()));
      reducer_.add(names_.back(), gradient().subspan(first, std::min(each, input.count() - first)));
    }
  }

  void restore() { std::memcpy(storage_.pointer(), input_.pointer(), input_.bytes()); }

  StepTimes step() {
    const Stopwatch watch;
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const double share = static_cast<double>(i + 1) / static_cast<double>(names_.size());
      std::this_thread::sleep_until(start +
                                    std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::duration<double>(pass_.seconds * share)));
      reducer_.ready(names_[i]);
    }
    const Stopwatch waiting;
    reducer_.wait();
    return {watch.seconds(), waiting.seconds()};
  }

  ValueSpan gradient() const { return storage_.values(input_.count(), input_.dtype()); }
  GradientReducer& reducer() { return reducer_; }

 private:
  BackwardPass pass_;
  ConstValueSpan input_;
  Buffer storage_;
  GradientReducer reducer_;
  std::vector<std::string> names_;
};

StepTimes time_step(ReducerRank& caller, Rank& rank) {
  caller.restore();
  rank.meet();
  const StepTimes times = caller.step();
  rank.meet();
  return times;
}

/// The first step also teaches the reducer the order of the parameters.
double check_first_step(const RankGradients& gradients, Rank& rank, ReducerRank& caller) {
  time_step(caller, rank);
  const std::string codec = caller.reducer().parameter_statistics().front().codec;
  check_identical(rank, {caller.gradient().pointer(), caller.gradient().bytes()}, codec);
  return rank.from_first(rank.first() ? check_sum(gradients, codec, caller.gradient()) : 0.0);
}

/// The largest over ranks of a sum over all steps, for one step.
template <typename Field>
double largest_a_step(Rank& rank, const ReducerStatistics& statistics, Field field) {
  const double own = static_cast<double>(statistics.*field) / static_cast<double>(statistics.steps);
  double largest = 0;
  for (const auto& each : rank.gather(std::span(&own, 1)))
    largest = std::max(largest, each.front());
  return largest;
}

/// One rank's steps.
struct Steps {
  std::vector<double> seconds, exposed;
};

AllreduceResult result_of(Rank& rank, const Steps& steps, GradientReducer& reducer, double error) {
  using Statistics = ReducerStatistics;
  const Statistics all = reducer.statistics();
  const auto largest = [&](auto field) { return largest_a_step(rank, all, field); };
  const Statistics first = reducer.parameter_statistics().front();
  return {.codec = first.codec,
          .algorithm = first.algorithm,
          .seconds = median_of_slowest(rank.gather(std::span<const double>(steps.seconds))),
          .wire_bytes = static_cast<std::uint64_t>(largest(&Statistics::sent_bytes)),
          .relative_error = error,
          .wire_seconds = largest(&Statistics::wire_seconds),
          .encode_seconds = largest(&Statistics::encode_seconds),
          .decode_seconds = largest(&Statistics::decode_seconds),
          .exposed_seconds = median_of_slowest(rank.gather(std::span<const double>(steps.exposed))),
          .explanation = reducer.explain()};
}

AllreduceResult measure_rank(const AllreduceCase& wanted, const BackwardPass& pass,
                             const RankGradients& gradients, Rank& rank) {
  ReducerRank caller(wanted, pass, gradients.of(rank.index()), rank.transport());
  const double error = check_first_step(gradients, rank, caller);
  StepTimes times;
  for (int step = 0; step < kWarmUpSteps; ++step) times = time_step(caller, rank);
  const std::size_t iterations =
      rank.from_first(wanted.iterations == 0 ? iterations_for(times.step) : wanted.iterations);
  caller.reducer().reset_statistics();
  rank.meet();
  Steps steps;
  for (std::size_t i = 0; i < iterations; ++i) {
    times = time_step(caller, rank);
    steps.seconds.push_back(times.step);
    steps.exposed.push_back(times.exposed);
  }
  return result_of(rank, steps, caller.reducer(), error);
}

}  // namespace

AllreduceResult measure_reducer(Fleet& fleet, const AllreduceCase& wanted, const BackwardPass& pass,
                                const RankGradients& gradients) {
  AllreduceResult result;
  fleet.run([&](Rank& rank) {
    const AllreduceResult own = measure_rank(wanted, pass, gradients, rank);
    if (rank.stores()) result = own;
  });
  return result;
}

}  // namespace tersor::bench
