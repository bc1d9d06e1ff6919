// A GPU that operations are measured on.
#pragma once

#include <tersor/align.h>
#include <tersor/stream.h>

#include <algorithm>
#include <cstddef>
#include <memory>

#include "bench/machine.h"

namespace tersor::bench {

/// Sets of buffers of which one call touches `bytes` each, so that no call finds in a cache what an
/// earlier one left there: together at least four times the cache, at least two, and not more than
/// a small call can have without filling the memory with allocations.
constexpr std::size_t rotation_sets(std::size_t cache_bytes, std::size_t bytes) {
  constexpr std::size_t kTimes = 4, kFewest = 2, kMost = 4096;
  const std::size_t wanted = ceil_div(kTimes * cache_bytes, std::max<std::size_t>(bytes, 1));
  return std::clamp(wanted, kFewest, kMost);
}

/// The current device, with calls on this stream. For builds with CUDA only.
std::unique_ptr<Machine> make_gpu_machine(StreamView stream);

}  // namespace tersor::bench
