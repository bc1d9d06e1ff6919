// The MPI transport: ranks are processes on one or several hosts. Link the target tersor::mpi.
#pragma once

#include <mpi.h>
#include <tersor/transport.h>

#include <memory>

namespace tersor {

/// Returns a transport that moves bytes over the caller's communicator with non-blocking messages
/// between pairs of ranks. Any thread may use the transport if MPI was initialised with
/// MPI_THREAD_MULTIPLE. Otherwise, only the thread that made the transport may use it
/// (TransportTraits::any_thread). MPI reports the ranks that share a host. docs/how-to/mpi.md
/// describes the thread levels and the death of a process.
///
/// Duplicates `communicator`, to separate Tersor's messages from the caller's messages. A
/// collective call. MPI must live until the transport and all its channels, splits and handles are
/// gone. Throws InvalidArgumentError if MPI is not initialised or already finalised, for
/// MPI_COMM_NULL, and for an inter-communicator. Throws TransportError if MPI reports an error.
std::unique_ptr<Transport> make_mpi_transport(MPI_Comm communicator);

/// Initialises and finalises MPI for programs without MPI, with MPI_THREAD_MULTIPLE if available.
/// Make one session per process; the session must outlive all transports.
class MpiSession {
 public:
  /// Throws InvalidArgumentError if MPI was initialised before.
  MpiSession();
  /// Passes the program's arguments to MPI_Init_thread, for launchers that need the arguments.
  MpiSession(int* argument_count, char*** arguments);
  /// Finalises MPI, unless a transport was aborted or a rank does not finish within 300 s. MPI
  /// would then wait for lost ranks; mpirun reports the end of such a process.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

 private:
  MPI_Comm meeting_ = MPI_COMM_NULL;  // all processes, for the last rendezvous
};

}  // namespace tersor
