// Counters of the CUDA and NCCL replacements, per thread.
#pragma once

#include <cstdint>

namespace tersor::idle {

struct Counts {
  std::uint64_t launches = 0;   ///< kernels, copies and memsets
  std::uint64_t events = 0;     ///< recorded, queried, or waited for by a stream
  std::uint64_t pointers = 0;   ///< queries of a pointer's memory
  std::uint64_t questions = 0;  ///< queries of streams, errors and the current device
  std::uint64_t nccl_calls = 0;

  std::uint64_t all() const { return launches + events + pointers + questions + nccl_calls; }
};

inline thread_local Counts counts;

}  // namespace tersor::idle
