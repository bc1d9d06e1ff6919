// MPI library queries: state, errors, thread level and features.
#pragma once

#include <mpi.h>

#include <string_view>

namespace tersor::mpi {

/// Throws TransportError with MPI's text if `code` is an error of `call`.
void check(int code, std::string_view call);

/// True if MPI is initialized and not finalized.
bool running();

/// Throws InvalidArgumentError unless the communicator is usable for a transport.
void check_communicator(MPI_Comm communicator);

/// The thread level of MPI's initialization: MPI_THREAD_SINGLE, …
int thread_level();
std::string_view thread_level_name(int level);

/// True if MPI accepts device pointers. The environment variable TERSOR_MPI_CUDA=0|1 takes
/// precedence over MPI's answer. Throws InvalidArgumentError for any other value.
bool supports_device_memory();

/// True if an idle MPI yields the core: Open MPI's mpi_yield_when_idle from the launcher's
/// environment. The default is the launcher's oversubscription setting.
bool yields_when_idle();

/// True if any transport of this process was aborted. MPI_Finalize may then wait for dead ranks
/// forever.
bool any_aborted();
void record_abort();

}  // namespace tersor::mpi
