// Times ranks that call `allreduce` in step.

#include "bench/allreduce_case.h"

#include "bench/allreduce_rank.h"
#include "bench/calls.h"

namespace tersor::bench {
namespace {

/// Rank 0 looks at what it ended with; all compare their bits. Returns the relative error.
double check_first_call(const RankGradients& gradients, Rank& rank, AllreduceRank& caller) {
  time_call(caller, rank);
  caller.gather();
  const std::string codec = caller.codec();
  check_identical(rank, {caller.gradient().pointer(), caller.gradient().bytes()}, codec);
  return rank.from_first(rank.first() ? check_sum(gradients, codec, caller.gradient()) : 0.0);
}

AllreduceResult measure_rank(const AllreduceCase& wanted, const RankGradients& gradients,
                             Rank& rank) {
  AllreduceRank caller(wanted, gradients.of(rank.index()), rank);
  while (!caller.settled()) time_call(caller, rank);
  const double error = check_first_call(gradients, rank, caller);
  const CallTimes times = time_calls(caller, rank, wanted.iterations);
  return {.codec = caller.codec(),
          .algorithm = times.algorithm,
          .seconds = times.seconds,
          .wire_bytes = times.wire_bytes,
          .relative_error = error,
          .wire_seconds = times.wire_seconds,
          .encode_seconds = times.encode_seconds,
          .decode_seconds = times.decode_seconds,
          .explanation = caller.explanation()};
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
