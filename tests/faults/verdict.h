// The required behavior of the remaining ranks after each fault.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/faults/rank_run.h"

namespace tersor::faults {

/// The allowed delay of an error beyond the contract, for busy machines.
inline constexpr std::chrono::seconds kTolerance{10};

/// Digests of a sound run's results: digests[rank][step].
using Digests = std::vector<std::vector<std::uint64_t>>;

/// The scenario's results without the fault, from a separate run in this process. Compares the
/// results with double-precision results. Appends differences to `complaints`.
Digests sound_digests(const Scenario& scenario, std::vector<std::string>& complaints);

/// kHeard if the network reports the end of a process.
enum class Ends { kUnheard, kHeard };

/// Complaints about the end of a rank. Empty if all is as promised. Pass the time of the fault as
/// `fault_at`, if known.
std::vector<std::string> judge(const Scenario& scenario, int rank, const RankReport& report,
                               const std::vector<std::uint64_t>& sound, Clock::time_point fault_at,
                               Ends ends = Ends::kUnheard);

}  // namespace tersor::faults
