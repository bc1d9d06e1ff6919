// See library_calls.h.
#include "bench/mpi/library_calls.h"

#include <fmt/format.h>
#include <mpi.h>
#include <tersor/error.h>

#include <algorithm>
#include <limits>

#include "bench/fleet.h"

namespace tersor::bench {
namespace {

int count_of(std::size_t values) {
  if (values > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    throw InvalidArgument(fmt::format("MPI counts in int, not to {}", values));
  return static_cast<int>(values);
}

/// To the next rank from the one before.
void shift(ConstValueSpan input, ValueSpan output, int count) {
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Sendrecv(input.pointer(), count, MPI_FLOAT, next_rank(rank, ranks), 0, output.pointer(),
               count, MPI_FLOAT, rank_before(rank, ranks), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

void deal(ConstValueSpan input, ValueSpan output, int count) {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Alltoall(input.pointer(), count / ranks, MPI_FLOAT, output.pointer(), count / ranks,
               MPI_FLOAT, MPI_COMM_WORLD);
}

}  // namespace

void call_library(std::string_view name, ConstValueSpan input, ValueSpan output) {
  const MPI_Comm world = MPI_COMM_WORLD;
  const int shard = count_of(std::min(input.count(), output.count()));
  const int whole = count_of(std::max(input.count(), output.count()));
  if (name == "MPI_Bcast")
    MPI_Bcast(output.pointer(), whole, MPI_FLOAT, 0, world);
  else if (name == "MPI_Reduce")
    MPI_Reduce(input.pointer(), output.pointer(), whole, MPI_FLOAT, MPI_SUM, 0, world);
  else if (name == "MPI_Gather")
    MPI_Gather(input.pointer(), shard, MPI_FLOAT, output.pointer(), shard, MPI_FLOAT, 0, world);
  else if (name == "MPI_Scatter")
    MPI_Scatter(input.pointer(), shard, MPI_FLOAT, output.pointer(), shard, MPI_FLOAT, 0, world);
  else if (name == "MPI_Alltoall")
    deal(input, output, whole);
  else if (name == "MPI_Sendrecv")
    shift(input, output, whole);
  else
    throw InvalidArgument(fmt::format("there is no {} here", name));
}

}  // namespace tersor::bench
