// A fleet with one rank in each process, over any transport between processes.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "bench/fleet.h"

namespace tersor::bench {

/// What such a fleet is made of, in the order in which it lives.
struct ProcessFleetParts {
  std::shared_ptr<void> keeper = {};  ///< of what the transport needs; may be null
  std::unique_ptr<Transport> transport;
  std::optional<Library> library = {};
  std::string text;  ///< `Fleet::text`
  /// Of a meeting: one ends for the last rank first; a second one brings them closer together.
  int barriers = 2;
};

/// The part of this process in a fleet. From now on rank 0 alone prints. The ranks meet, and
/// gather, by messages of the transport; what is measured has a channel of its own. Throws Error
/// where the others cannot be silenced.
std::unique_ptr<Fleet> make_process_fleet(ProcessFleetParts parts);

// Of builds with MPI, or with TCP. `options.link` is no more than a name: what the wire is said to
// be.

/// Ranks that mpirun started. Initialises MPI for as long as the process runs. Throws
/// InvalidArgument where --ranks and mpirun disagree.
std::unique_ptr<Fleet> make_mpi_fleet(const FleetOptions& options);

/// Starts the other ranks where no launcher did, 4 in all unless `options` say another number.
/// Throws InvalidArgument where --ranks says another number than the launcher, or the launcher's
/// variables are no numbers of a rank, and what TcpTransport throws.
std::unique_ptr<Fleet> make_tcp_fleet(const FleetOptions& options);

}  // namespace tersor::bench
