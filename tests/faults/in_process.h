// Scenarios among threads of this process.
#pragma once

#include <string>
#include <vector>

#include "tests/faults/rank_run.h"

namespace tersor::faults {

/// Runs the scenario, each rank on a thread of its own; a report a rank.
std::vector<RankReport> run_in_process(const Scenario& scenario);

/// Runs a scenario and judges it: its ranks, what they held before, that no thread stays behind,
/// and that a fresh world works afterwards. Every complaint is a sentence.
std::vector<std::string> complaints_in_process(const Scenario& scenario);

}  // namespace tersor::faults
