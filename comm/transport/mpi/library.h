// What concerns MPI itself: whether it is there, what it reports, which threads it lets in.
#pragma once

#include <mpi.h>

#include <string_view>

namespace tersor::mpi {

/// Throws TransportError with MPI's own words where `code` is an error of `call`.
void check(int code, std::string_view call);

/// Initialised and not yet finalised.
bool running();

/// Throws InvalidArgument unless a transport may be made over the communicator.
void check_communicator(MPI_Comm communicator);

/// The level that MPI was initialised with, as MPI_THREAD_SINGLE, …
int thread_level();
std::string_view thread_level_name(int level);

/// Whether MPI takes pointers to device memory: TERSOR_MPI_CUDA=0|1 of the environment, else what
/// MPI itself says. Throws InvalidArgument for any other value.
bool takes_device_memory();

/// Whether MPI lends the core to others where it finds nothing to do: Open MPI's
/// mpi_yield_when_idle, as its launcher leaves it in the environment, or else what the launcher
/// says of ranks and cores.
bool yields_when_idle();

/// Of this process: whether a transport was poisoned, so that MPI may wait for the dead when it is
/// finalised.
bool any_poisoned();
void note_poisoned();

}  // namespace tersor::mpi
