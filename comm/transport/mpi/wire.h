// Ordered messages of any length between processes over MPI.
#pragma once

#include <mpi.h>
#include <tersor/network.h>

#include <memory>

namespace tersor::mpi {

/// Makes the endpoint of this process on a duplicate of the communicator. Gathers the host of each
/// rank. Collective.
std::unique_ptr<Wire> make_wire(MPI_Comm communicator);

}  // namespace tersor::mpi
