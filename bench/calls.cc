// See calls.h.

#include "bench/calls.h"

#include <span>
#include <vector>

#include "bench/ranks.h"
#include "bench/timing.h"

namespace tersor::bench {
namespace {

constexpr int kWarmUpCalls = 2;

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

CallTimes times_of(Rank& rank, const Calls& calls) {
  using Call = CollectiveStatistics;
  return {
      .algorithm = calls.statistics.back().algorithm,
      .seconds = median_of_slowest(rank.gather(std::span<const double>(calls.seconds))),
      .wire_bytes = static_cast<std::uint64_t>(median_of_largest(rank, calls, &Call::sent_bytes)),
      .wire_seconds = median_of_largest(rank, calls, &Call::wire_seconds),
      .encode_seconds = median_of_largest(rank, calls, &Call::encode_seconds),
      .decode_seconds = median_of_largest(rank, calls, &Call::decode_seconds)};
}

}  // namespace

double time_call(Caller& caller, Rank& rank) {
  caller.restore();
  rank.meet();
  const Stopwatch watch;
  caller.call();
  const double seconds = watch.seconds();
  rank.meet();
  return seconds;
}

CallTimes time_calls(Caller& caller, Rank& rank, std::size_t iterations) {
  double seconds = 0;
  for (int call = 0; call < kWarmUpCalls; ++call) seconds = time_call(caller, rank);
  iterations = rank.from_first(iterations == 0 ? iterations_for(seconds) : iterations);
  Calls calls;
  for (std::size_t i = 0; i < iterations; ++i) {
    calls.seconds.push_back(time_call(caller, rank));
    calls.statistics.push_back(caller.statistics());
  }
  return times_of(rank, calls);
}

}  // namespace tersor::bench
