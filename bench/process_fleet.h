// A fleet with one rank per process, over any transport between processes.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "bench/fleet.h"

namespace tersor::bench {

/// The parts of a fleet, in the order of their lifetimes.
struct ProcessFleetParts {
  std::shared_ptr<void> keeper = {};  ///< owner of the transport's resources; may be null
  std::unique_ptr<Transport> transport;
  std::optional<Library> library = {};
  std::string text;  ///< `Fleet::text`
  /// Barriers per meeting. A single barrier ends first on the last rank to arrive. A second barrier
  /// brings the ranks closer together.
  int barriers = 2;
};

/// Makes this process's part of a fleet. Only rank 0 prints from now on. Ranks meet and gather by
/// messages of the transport; measured messages use a separate channel. Throws Error if this
/// process's output cannot be silenced.
std::unique_ptr<Fleet> make_process_fleet(ProcessFleetParts parts);

// These functions need a build with MPI or TCP. `options.link` is only a name in records.

/// Makes a fleet of the ranks started by mpirun. Initialises MPI for the lifetime of the process.
/// Throws InvalidArgumentError if --ranks differs from mpirun's number.
std::unique_ptr<Fleet> make_mpi_fleet(const FleetOptions& options);

/// Starts the other ranks unless a launcher started them: by default 4 in total. Throws
/// InvalidArgumentError if --ranks differs from the launcher's number, and for invalid variables of
/// the launcher. Also throws the exceptions of make_tcp_transport.
std::unique_ptr<Fleet> make_tcp_fleet(const FleetOptions& options);

}  // namespace tersor::bench
