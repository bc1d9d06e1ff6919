// Times allreduces of device memory: several cases of one count, one call of each in turn, so that
// what changes on the machine meanwhile meets all of them.
#pragma once

#include <cstddef>
#include <optional>
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

/// Medians over iterations of the slowest rank.
struct DeviceAllreduceResult {
  Algorithm algorithm = Algorithm::kAuto;  ///< the one that was used
  double seconds = 0;            ///< on the device, from the call's first kernel to its last
  double host_seconds = 0;       ///< until the call returned
  std::uint64_t wire_bytes = 0;  ///< sent by the rank that sent most; 0 for the library's sum
  double relative_error = 0;
  /// Values that differ from the CPU's in a bit; of sums that the library below made, those that
  /// rounding does not explain. nullopt where its sums are but a part of the way: then only the
  /// relative error was held against a limit.
  std::optional<std::size_t> wrong;
};

/// A first call of each case is checked before the clock runs: throws Error where a value is wrong
/// or ranks differ, and what the collective throws.
std::vector<DeviceAllreduceResult> measure_on_device(Fleet& fleet,
                                                     std::span<const DeviceAllreduceCase> cases,
                                                     const DeviceAllreduceTiming& timing);

}  // namespace tersor::bench
