// A GPU as the machine of operations.
#pragma once

#include <tersor/align.h>
#include <tersor/stream.h>

#include <algorithm>
#include <cstddef>
#include <memory>

#include "bench/micro/machine.h"

namespace tersor::bench {

/// Returns the number of buffer sets for calls with `bytes` of memory traffic, such that no call
/// finds data of earlier calls in the cache. All sets together have at least four times the size of
/// the cache. There are at least two sets, and at most 4,096 to limit the number of allocations of
/// small calls.
constexpr std::size_t rotation_sets(std::size_t cache_bytes, std::size_t bytes) {
  constexpr std::size_t kTimes = 4, kMin = 2, kMax = 4096;
  const std::size_t needed = ceil_div(kTimes * cache_bytes, std::max<std::size_t>(bytes, 1));
  return std::clamp(needed, kMin, kMax);
}

/// Makes a machine of the current device, with calls on this stream. Only in builds with CUDA.
std::unique_ptr<Machine> make_gpu_machine(StreamView stream);

/// The cost of launches: a call for 500 tensors, and 200 short calls in a row, each also as a
/// graph. A graph does the host's part of each call once, before timing.
std::vector<OperationKind> launch_operations();

/// The alternatives without Tersor. The error of an alternative must be as small as the codec's
/// error.
std::vector<OperationKind> alternative_operations();

}  // namespace tersor::bench
