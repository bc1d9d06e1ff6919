// Times allreduces of device memory. Several cases with equal counts alternate call by call, so
// changes on the machine affect all cases.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "bench/allreduce_case.h"
#include "bench/ranks.h"

namespace tersor::bench {

/// A case and its gradients. Rank 0 has the gradients of all ranks.
struct DeviceAllreduceCase {
  AllreduceCase wanted;
  const RankGradients* gradients = nullptr;
};

/// The kind and number of calls.
struct DeviceAllreduceTiming {
  bool graph = false;          ///< True for replays of a captured call
  std::size_t iterations = 0;  ///< 0: about one second of calls per case
};

/// Times the cases after checking a first call of each case. Throws Error for wrong values and for
/// ranks with different bits, and the collective's exceptions.
std::vector<AllreduceResult> measure_on_device(Fleet& fleet,
                                               std::span<const DeviceAllreduceCase> cases,
                                               const DeviceAllreduceTiming& timing);

}  // namespace tersor::bench
