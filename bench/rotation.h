// How many sets of buffers a benchmark goes round, so that no call finds in a cache what an earlier
// one left there.
#pragma once

#include <tersor/align.h>

#include <algorithm>
#include <cstddef>

namespace tersor::bench {

/// Sets of which one call touches `bytes` each: together at least four times the cache, at least
/// two, and not more than a small call can have without filling the memory with allocations.
constexpr std::size_t rotation_sets(std::size_t cache_bytes, std::size_t bytes) {
  constexpr std::size_t kTimes = 4, kFewest = 2, kMost = 4096;
  const std::size_t wanted = ceil_div(kTimes * cache_bytes, std::max<std::size_t>(bytes, 1));
  return std::clamp(wanted, kFewest, kMost);
}

}  // namespace tersor::bench
