// Operation of the remaining ranks after a failure, on an isolated channel created before.
#pragma once

#include <tersor/transport.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/faults/scenario.h"

namespace tersor::faults {

/// Returns null if the transport has no isolated channels.
std::unique_ptr<Transport> isolated_channel_of(Transport& transport);

/// Called by all remaining ranks. The isolated channel must deliver messages between these ranks,
/// report every lost rank, and support sums on a split. Returns complaints.
std::vector<std::string> go_on(const Scenario& scenario, Transport& isolated);

}  // namespace tersor::faults
