// Times ranks that call `allreduce` in step.

#include "bench/allreduce_case.h"

#include <algorithm>
#include <vector>

#include "bench/allreduce_rank.h"
#include "bench/timing.h"

namespace tersor::bench {
namespace {

constexpr int kWarmUps = 2;

/// Rank 0 looks at what it ended with; all compare their bits. Returns the relative error.
double check_first_call(const RankGradients& gradients, Rank& rank, AllreduceRank& caller) {
  caller.restore();
  rank.meet();
  caller.call();
  caller.gather();
  const std::string codec = caller.codec();
  check_identical(rank, {caller.gradient().pointer(), caller.gradient().bytes()}, codec);
  return rank.from_first(rank.first() ? check_sum(gradients, codec, caller.gradient()) : 0.0);
}

double time_call(AllreduceRank& caller, Rank& rank) {
  caller.restore();
  rank.meet();
  const Stopwatch watch;
  caller.call();
  const double seconds = watch.seconds();
  rank.meet();
  return seconds;
}

/// One rank's calls.
struct Calls {
  std::vector<double> seconds;
  std::vector<CollectiveStatistics> statistics;
};

/// The median over iterations of the largest value over ranks.
template <typename Field>
double median_of_largest(Rank& rank, const Calls& calls, Field field) {
  std::vector<double> values;
  for (const CollectiveStatistics& call : calls.statistics)
    values.push_back(static_cast<double>(call.*field));
  return median_of_slowest(rank.gather(std::span<const double>(values)));
}

AllreduceResult result_of(Rank& rank, const Calls& calls, double relative_error) {
  using Call = CollectiveStatistics;
  return {
      .algorithm = calls.statistics.back().algorithm,
      .seconds = median_of_slowest(rank.gather(std::span<const double>(calls.seconds))),
      .wire_bytes = static_cast<std::uint64_t>(median_of_largest(rank, calls, &Call::sent_bytes)),
      .relative_error = relative_error,
      .wire_seconds = median_of_largest(rank, calls, &Call::wire_seconds),
      .encode_seconds = median_of_largest(rank, calls, &Call::encode_seconds),
      .decode_seconds = median_of_largest(rank, calls, &Call::decode_seconds)};
}

AllreduceResult measure_rank(const AllreduceCase& wanted, const RankGradients& gradients,
                             Rank& rank) {
  AllreduceRank caller(wanted, gradients.of(rank.index()), rank);
  while (!caller.settled()) time_call(caller, rank);
  const double error = check_first_call(gradients, rank, caller);
  double seconds = 0;
  for (int call = 0; call < kWarmUps; ++call) seconds = time_call(caller, rank);
  const std::size_t iterations =
      rank.from_first(wanted.iterations == 0 ? iterations_for(seconds) : wanted.iterations);
  Calls calls;
  for (std::size_t i = 0; i < iterations; ++i) {
    calls.seconds.push_back(time_call(caller, rank));
    calls.statistics.push_back(caller.statistics());
  }
  AllreduceResult result = result_of(rank, calls, error);
  result.codec = caller.codec();
  result.explanation = caller.explanation();
  return result;
}

}  // namespace

AllreduceResult measure_allreduce(Fleet& fleet, const AllreduceCase& wanted,
                                  const RankGradients& gradients) {
  AllreduceResult result;
  fleet.run([&](Rank& rank) {
    const AllreduceResult own = measure_rank(wanted, gradients, rank);
    if (rank.stores()) result = own;
  });
  return result;
}

}  // namespace tersor::bench
