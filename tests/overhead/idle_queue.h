// What kernels/common/queue.cuh is on a device: launches are counted. No kernel runs but marks, for
// which the host waits.
#pragma once

#include "tests/overhead/idle_counts.h"

#include <tersor/stream.h>

#include <algorithm>
#include <cstddef>

namespace tersor::kernels {

constexpr unsigned kWarpThreads = 32;

/// All that a mark asks of its block.
struct LoneThread {
  unsigned thread_rank() const { return 0; }
};

template <class Kernel>
concept Mark = requires(const Kernel& kernel) {
  kernel.words->begun;
};

class Queue {
 public:
  explicit Queue(StreamView) {}

  template <class Kernel>
  unsigned blocks_for(std::size_t tasks, unsigned tasks_a_block) const {
    constexpr std::size_t kMostBlocks = 1056;  // of 132 multiprocessors, 8 each
    idle::ask();                               // for the current device
    const std::size_t wanted = (tasks + tasks_a_block - 1) / tasks_a_block;
    return static_cast<unsigned>(std::clamp<std::size_t>(wanted, 1, kMostBlocks));
  }

  template <class Kernel>
  void launch(const Kernel& kernel, unsigned) {
    idle::launch(&kernel);
    if constexpr (Mark<Kernel>) {
      typename Kernel::Shared shared;
      kernel(LoneThread{}, shared);
    }
  }

  void zero(void* pointer, std::size_t) { idle::launch(pointer); }
};

}  // namespace tersor::kernels
