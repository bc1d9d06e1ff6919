// Times allreduces of device memory: several cases of one count, one call of each in turn, so that
// what changes on the machine meanwhile meets all of them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "bench/allreduce_case.h"
#include "bench/ranks.h"

namespace tersor::bench {

/// A case and the gradients that it reduces; rank 0 has those of all ranks.
struct DeviceAllreduceCase {
  AllreduceCase wanted;
  const RankGradients* gradients = nullptr;
};

/// How calls are made.
struct DeviceAllreduceTiming {
  bool graph = false;          ///< replays of a captured call
  std::size_t iterations = 0;  ///< 0: as many as fill about a second for each case
};

/// A first call of each case is checked before the clock runs: throws Error where a value is wrong
/// or ranks differ, and what the collective throws.
std::vector<AllreduceResult> measure_on_device(Fleet& fleet,
                                               std::span<const DeviceAllreduceCase> cases,
                                               const DeviceAllreduceTiming& timing);

}  // namespace tersor::bench
