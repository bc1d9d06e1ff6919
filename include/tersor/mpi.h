// Ranks that are processes, on one host or on many: the Transport over MPI. Target tersor::mpi.
#pragma once

#include <mpi.h>
#include <tersor/forwarding.h>

namespace tersor {

/// Moves bytes over a communicator of the caller, by non-blocking messages between pairs of ranks.
/// Any thread may use it where MPI was initialised with MPI_THREAD_MULTIPLE; with less only the one
/// that made it (TransportTraits::any_thread). Hosts are by MPI's own word on who shares memory.
/// docs/mpi.md says what happens with each thread level and when a process dies.
class MpiTransport final : public ForwardingTransport {
 public:
  /// Duplicates `communicator`, so that no message of ours meets one of the caller's: a collective
  /// call. MPI must live until this transport and all its channels, splits and handles are gone.
  /// Throws InvalidArgument where MPI is not initialised or already finalised, for MPI_COMM_NULL
  /// and for an inter-communicator; TransportError where MPI reports an error.
  explicit MpiTransport(MPI_Comm communicator);
  ~MpiTransport() override;
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;
};

/// For programs that have no MPI yet: initialises it, with MPI_THREAD_MULTIPLE where that is to be
/// had, and finalises it at the end of its life. One for each process; outlives all transports.
class MpiSession {
 public:
  /// Throws InvalidArgument where MPI was initialised before.
  MpiSession();
  /// As above, for launchers that hand something over in the arguments.
  MpiSession(int* argument_count, char*** arguments);
  /// Does not finalise where a transport was poisoned, or a rank does not come to its end within
  /// 300 s: MPI would wait for ranks that are gone. Such a process ends with what mpirun then says
  /// of it.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

 private:
  MPI_Comm meeting_ = MPI_COMM_NULL;  // of all processes, at the end
};

}  // namespace tersor
