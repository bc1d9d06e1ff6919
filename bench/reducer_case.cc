// Ranks as threads that train nothing: their backward pass is a sleep, which takes no core from the
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

constexpr int kWarmUps = 2;

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

/// What the ranks of one measurement share.
struct Shared {
  Shared(const AllreduceCase& wanted_case, const RankGradients& rank_gradients)
      : wanted(wanted_case),
        gradients(rank_gradients),
        meeting(gradients.ranks()),
        results(static_cast<std::size_t>(gradients.ranks())),
        steps(results.size()),
        exposed(results.size()),
        statistics(results.size()),
        iterations(wanted.iterations) {}

  const AllreduceCase& wanted;
  const RankGradients& gradients;
  Meeting meeting;
  std::vector<ConstByteSpan> results;
  std::vector<std::vector<double>> steps, exposed;
  std::vector<ReducerStatistics> statistics;
  std::size_t iterations;
  Algorithm algorithm = Algorithm::kAuto;
  double relative_error = 0;
  std::string codec, explanation;
};

StepTimes time_step(ReducerRank& rank, Meeting::Member& member) {
  rank.restore();
  member.meet();
  const StepTimes times = rank.step();
  member.meet();
  return times;
}

/// The first step also teaches the reducer the order of the parameters.
void check_first_step(Shared& shared, ReducerRank& rank, std::size_t index,
                      Meeting::Member& member) {
  shared.results[index] = {rank.gradient().pointer(), rank.gradient().bytes()};
  time_step(rank, member);
  if (index == 0) {
    shared.codec = rank.reducer().parameter_statistics().front().codec;
    shared.explanation = rank.reducer().explain();
    shared.relative_error = check_sum(shared.gradients, shared.codec, rank.gradient());
    check_identical(shared.results, shared.codec);
  }
  member.meet();
}

void run_rank(Shared& shared, const BackwardPass& pass, Transport& transport) {
  const auto index = static_cast<std::size_t>(transport.rank());
  Meeting::Member member(shared.meeting);
  ReducerRank rank(shared.wanted, pass, shared.gradients.of(transport.rank()), transport);
  check_first_step(shared, rank, index, member);
  StepTimes times;
  for (int step = 0; step < kWarmUps; ++step) times = time_step(rank, member);
  if (index == 0 && shared.iterations == 0) shared.iterations = iterations_for(times.step);
  rank.reducer().reset_statistics();
  member.meet();
  for (std::size_t i = 0; i < shared.iterations; ++i) {
    times = time_step(rank, member);
    shared.steps[index].push_back(times.step);
    shared.exposed[index].push_back(times.exposed);
  }
  shared.statistics[index] = rank.reducer().statistics();
  if (index == 0) shared.algorithm = rank.reducer().parameter_statistics().front().algorithm;
  member.meet();
}

/// The largest over ranks of a sum over all steps, for one step.
template <typename Field>
double largest_a_step(const Shared& shared, Field field) {
  double largest = 0;
  for (const ReducerStatistics& rank : shared.statistics)
    largest = std::max(largest, static_cast<double>(rank.*field) / static_cast<double>(rank.steps));
  return largest;
}

}  // namespace

AllreduceResult measure_reducer(const AllreduceCase& wanted, const BackwardPass& pass,
                                const RankGradients& gradients) {
  Shared shared(wanted, gradients);
  run_ranks(gradients.ranks(), wanted.link,
            [&](Transport& transport) { run_rank(shared, pass, transport); });
  using Steps = ReducerStatistics;
  return {.codec = shared.codec,
          .algorithm = shared.algorithm,
          .seconds = median_of_slowest(shared.steps),
          .wire_bytes = static_cast<std::uint64_t>(largest_a_step(shared, &Steps::sent_bytes)),
          .relative_error = shared.relative_error,
          .wire_seconds = largest_a_step(shared, &Steps::wire_seconds),
          .encode_seconds = largest_a_step(shared, &Steps::encode_seconds),
          .decode_seconds = largest_a_step(shared, &Steps::decode_seconds),
          .exposed_seconds = median_of_slowest(shared.exposed),
          .explanation = shared.explanation};
}

}  // namespace tersor::bench
