// Operations for devices only.
#pragma once

#include <vector>

#include "bench/micro/machine.h"

namespace tersor::bench {

/// The cost of launches: a call for 500 tensors, and 200 short calls in a row, each also as a
/// graph. A graph does the host's part of each call once, before timing.
std::vector<OperationKind> launch_operations();

/// The alternatives without Tersor. The error of an alternative must be as small as the codec's
/// error.
std::vector<OperationKind> operations_without_us();

}  // namespace tersor::bench
