// Times ranks that call `allreduce` in step.

#include "bench/allreduce_case.h"

#include "bench/allreduce_rank.h"

namespace tersor::bench {
namespace {

AllreduceResult measure_rank(const AllreduceCase& wanted, const RankGradients& gradients,
                             Rank& rank) {
  AllreduceRank caller(wanted, gradients.of(rank.index()), rank);
  while (!caller.settled()) time_turn(caller, rank);
  time_turn(caller, rank);
  caller.gather();
  const double error = check_reduced(gradients, rank, caller.codec(), caller.gradient());
  return {time_turns(caller, rank, wanted.iterations), caller.codec(), error, caller.explanation()};
}

}  // namespace

AllreduceResult measure_allreduce(Fleet& fleet, const AllreduceCase& wanted,
                                  const RankGradients& gradients) {
  return measure_on(fleet, [&](Rank& rank) { return measure_rank(wanted, gradients, rank); });
}

}  // namespace tersor::bench
