// Ranks over TCP, one in each process: started by this program itself, or by whoever tells each
// process which rank it is.
#pragma once

#include <memory>
#include <optional>

#include "bench/fleet.h"
#include "bench/processes/rank_place.h"

namespace tersor::bench {

/// Where ranks meet: a file that all of them reach, and that no run had before.
inline constexpr const char* kTcpFileVariable = "TERSOR_TCP_FILE";

/// Which rank this process is, by the variables TERSOR_RANK and TERSOR_RANKS, or those of a
/// launcher (Open MPI's, Slurm's, PMI's); nullopt where TERSOR_TCP_FILE is not set. Throws
/// InvalidArgument where it is, and the others are not, or are no numbers of a rank.
std::optional<RankPlace> tcp_place_of_process();

/// Starts the other ranks where nobody did, 4 in all unless `options` say another number.
/// `options.link` is no more than a name. Throws InvalidArgument where --ranks says another number
/// than the launcher, and what TcpTransport throws.
std::unique_ptr<Fleet> make_tcp_fleet(const FleetOptions& options);

}  // namespace tersor::bench
