// What the stand-ins of CUDA and NCCL were asked for by this thread.
#pragma once

#include <cstdint>

namespace tersor::idle {

struct Counts {
  std::uint64_t launches = 0;   ///< kernels, copies and zeros
  std::uint64_t events = 0;     ///< recorded, asked for, or waited for by a stream
  std::uint64_t pointers = 0;   ///< whose memory was asked for
  std::uint64_t questions = 0;  ///< about streams, errors and the current device
  std::uint64_t nccl_calls = 0;

  std::uint64_t all() const { return launches + events + pointers + questions + nccl_calls; }
};

inline thread_local Counts counts;

}  // namespace tersor::idle
