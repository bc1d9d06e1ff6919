// What every failure has to look like to the ranks that survive it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/faults/rank_run.h"

namespace tersor::faults {

/// How long an error may take beyond what the contract says, on a machine that is busy.
inline constexpr std::chrono::seconds kTolerance{10};

/// What the ranks of a sound run hold after each step: digests[rank][step].
using Digests = std::vector<std::vector<std::uint64_t>>;

/// What the scenario would yield without its fault: run in a world of its own in this process, and
/// held against results in double precision. Wrong ones are told in `complaints`.
Digests sound_digests(const Scenario& scenario, std::vector<std::string>& complaints);

/// Whether the network tells of a process that ends.
enum class Ends { kUnheard, kHeard };

/// What is wrong with how one rank ended; nothing where all is as promised. `fault_at` is when the
/// fault befell its rank, where that is known.
std::vector<std::string> judge(const Scenario& scenario, int rank, const RankReport& report,
                               const std::vector<std::uint64_t>& sound, Clock::time_point fault_at,
                               Ends ends = Ends::kUnheard);

}  // namespace tersor::faults
