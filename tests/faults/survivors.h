// What is left of a world once all its ranks were told of a failure: a lifeline that was made
// before.
#pragma once

#include <tersor/transport.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/faults/scenario.h"

namespace tersor::faults {

/// Null where the transport has none.
std::unique_ptr<Transport> lifeline_of(Transport& transport);

/// Called by all ranks that the scenario leaves: they hear of each other there, of who is gone that
/// it is lost, and a split of it adds. What was not so.
std::vector<std::string> go_on(const Scenario& scenario, Transport& lifeline);

}  // namespace tersor::faults
