// Ranks that mpirun started, one in each process.
#pragma once

#include "bench/fleet.h"

namespace tersor::bench {

/// Initialises MPI for as long as the process runs. `options.link` is no more than a name: what
/// the wire is said to be. Throws InvalidArgument where --ranks and mpirun disagree.
std::unique_ptr<Fleet> make_mpi_fleet(const FleetOptions& options);

}  // namespace tersor::bench
