
#include "bench/micro/mpi/mpi_rank.h"

#include <fmt/format.h>
#include <mpi.h>
#include <tersor/error.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

namespace tersor::bench {

bool started_by_mpi() {
  constexpr const char* kVariables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};
  return std::ranges::any_of(kVariables,
                             [](const char* name) { return std::getenv(name) != nullptr; });
}

MpiRank::MpiRank() : transport_(make_mpi_transport(MPI_COMM_WORLD)) {
  if (transport_->ranks() != 2)
    throw InvalidArgumentError(fmt::format(
        "mpirun started {} ranks, but a transport is measured between 2: say mpirun -n 2",
        transport_->ranks()));
}

}  // namespace tersor::bench
