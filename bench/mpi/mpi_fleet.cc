// One rank of MPI_COMM_WORLD in each process.

#include "bench/mpi/mpi_fleet.h"

#include "bench/mpi/library_calls.h"
#include "bench/mpi/library_sum.h"
#include "bench/process_fleet.h"

#include <fmt/format.h>
#include <mpi.h>
#include <tersor/error.h>
#include <tersor/mpi.h>

namespace tersor::bench {

std::unique_ptr<Fleet> make_mpi_fleet(const FleetOptions& options) {
  LibrarySum::prepare();
  auto session = std::make_shared<MpiSession>();
  auto transport = std::make_unique<MpiTransport>(MPI_COMM_WORLD);
  const int ranks = transport->ranks();
  if (options.ranks.value_or(ranks) != ranks)
    throw InvalidArgument(fmt::format(
        "--ranks {}, but mpirun started {}: over MPI leave out --ranks and say mpirun -n {}",
        *options.ranks, ranks, *options.ranks));
  const auto library = std::make_shared<LibrarySum>();
  return make_process_fleet(
      {.keeper = std::move(session),
       .transport = std::move(transport),
       .library = Library{.name = "MPI_Allreduce",
                          .sum = [library](ValueSpan values, StreamView) { library->add(values); },
                          .call = call_library},
       .text = fmt::format("{} processes over MPI, link {}", ranks, options.link)});
}

}  // namespace tersor::bench
