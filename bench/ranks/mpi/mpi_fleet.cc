// A fleet with one rank of MPI_COMM_WORLD per process.

#include "bench/ranks/fleet.h"
#include "bench/ranks/mpi/library_sum.h"

#include <fmt/format.h>
#include <mpi.h>
#include <tersor/error.h>
#include <tersor/mpi.h>

#include <algorithm>
#include <limits>

namespace tersor::bench {
namespace {

int count_of(std::size_t values) {
  if (values > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    throw InvalidArgumentError(fmt::format("MPI counts in int, not to {}", values));
  return static_cast<int>(values);
}

/// Sends to the next rank and receives from the previous rank.
void send_receive(ConstValueSpan input, ValueSpan output, int count) {
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Sendrecv(input.pointer(), count, MPI_FLOAT, next_rank(rank, ranks), 0, output.pointer(),
               count, MPI_FLOAT, rank_before(rank, ranks), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

void all_to_all(ConstValueSpan input, ValueSpan output, int count) {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Alltoall(input.pointer(), count / ranks, MPI_FLOAT, output.pointer(), count / ranks,
               MPI_FLOAT, MPI_COMM_WORLD);
}

/// Calls MPI_Bcast (in place, in the output), MPI_Reduce, MPI_Gather, MPI_Scatter, MPI_Alltoall or
/// MPI_Sendrecv. MPI_Sendrecv sends to the next rank and receives from the previous rank. Calls use
/// f32, MPI_COMM_WORLD and MPI's own choice of algorithm. Throws InvalidArgumentError for another
/// name, and for too many values.
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
    all_to_all(input, output, whole);
  else if (name == "MPI_Sendrecv")
    send_receive(input, output, whole);
  else
    throw InvalidArgumentError(fmt::format("there is no {} here", name));
}

}  // namespace

std::unique_ptr<Fleet> make_mpi_fleet(const FleetOptions& options) {
  LibrarySum::prepare();
  auto session = std::make_shared<MpiSession>();
  auto transport = make_mpi_transport(MPI_COMM_WORLD);
  const int ranks = transport->ranks();
  if (options.ranks.value_or(ranks) != ranks)
    throw InvalidArgumentError(fmt::format(
        "--ranks {}, but mpirun started {}: over MPI leave out --ranks and say mpirun -n {}",
        *options.ranks, ranks, *options.ranks));
  const auto library = std::make_shared<LibrarySum>();
  return std::make_unique<Fleet>(FleetParts{
      .owner = std::move(session),
      .transport = std::move(transport),
      .library = Library{.name = "MPI_Allreduce",
                         .sum = [library](ValueSpan values, StreamView) { library->add(values); },
                         .call = call_library},
      .text = fmt::format("{} processes over MPI, link {}", ranks, options.link)});
}

}  // namespace tersor::bench
