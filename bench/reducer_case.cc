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

/// One rank's gradients and reducer; a call is a step.
class ReducerRank final : public RankCall {
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

  void restore() override { std::memcpy(storage_.pointer(), input_.pointer(), input_.bytes()); }

  void call() override { time(); }

  // Of which the wait is what was exposed.
  TurnTime time() override {
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

  // The reducer counts over all steps.
  const CollectiveStatistics& statistics() const override { return none_; }

  ValueSpan gradient() const { return storage_.values(input_.count(), input_.dtype()); }
  GradientReducer& reducer() { return reducer_; }

 private:
  BackwardPass pass_;
  ConstValueSpan input_;
  Buffer storage_;
  GradientReducer reducer_;
  std::vector<std::string> names_;
  CollectiveStatistics none_;
};

/// The largest over ranks of a sum over all steps, for one step.
template <typename Field>
double largest_a_step(Rank& rank, const ReducerStatistics& statistics, Field field) {
  const double own = static_cast<double>(statistics.*field) / static_cast<double>(statistics.steps);
  double largest = 0;
  for (const auto& each : rank.gather(std::span(&own, 1)))
    largest = std::max(largest, each.front());
  return largest;
}

AllreduceResult measure_rank(const AllreduceCase& wanted, const BackwardPass& pass,
                             const RankGradients& gradients, Rank& rank) {
  ReducerRank caller(wanted, pass, gradients.of(rank.index()), rank.transport());
  GradientReducer& reducer = caller.reducer();
  time_turn(caller, rank);  // also teaches the reducer the order of the parameters
  const std::string codec = reducer.parameter_statistics().front().codec;
  const double error = check_reduced(gradients, rank, codec, caller.gradient());
  RankCall* const callers[] = {&caller};
  const std::size_t steps = warm_up(callers, rank, wanted.iterations);
  reducer.reset_statistics();
  rank.meet();
  const TurnTimes times = time_turns(callers, rank, steps).front();
  const ReducerStatistics all = reducer.statistics(),
                          first = reducer.parameter_statistics().front();
  AllreduceResult result{times, first.codec, error, reducer.explain()};
  result.algorithm = first.algorithm;
  using Statistics = ReducerStatistics;
  result.wire_bytes =
      static_cast<std::uint64_t>(largest_a_step(rank, all, &Statistics::sent_bytes));
  result.wire_seconds = largest_a_step(rank, all, &Statistics::wire_seconds);
  result.encode_seconds = largest_a_step(rank, all, &Statistics::encode_seconds);
  result.decode_seconds = largest_a_step(rank, all, &Statistics::decode_seconds);
  return result;
}

}  // namespace

AllreduceResult measure_reducer(Fleet& fleet, const AllreduceCase& wanted, const BackwardPass& pass,
                                const RankGradients& gradients) {
  return measure_on(fleet, [&](Rank& rank) { return measure_rank(wanted, pass, gradients, rank); });
}

}  // namespace tersor::bench
