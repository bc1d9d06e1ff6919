// Where kernels are launched: a Queue over the caller's stream. A kernel is a struct that is copied
// into the launch:
//   static constexpr unsigned kThreads;          a multiple of 32, of each block
//   static constexpr unsigned kResident;         blocks on a multiprocessor at once, at least:
//                                                65,536 / (kThreads * kResident) registers a thread
//   static constexpr bool kScans;                whether it calls block.exclusive_sum
//   struct Shared;                               SharedArrays, or nothing
//   template <class Block> void operator()(const Block& block, Shared& shared) const;
// Launching neither waits nor allocates.
#pragma once

#include "kernels/device/cuda_error.h"
#include "kernels/device/group.cuh"

#include <tersor/stream.h>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

namespace tersor::kernels {

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kResident)
    run_kernel(const __grid_constant__ Kernel kernel) {
  using Block = DeviceBlock<Kernel::kThreads, Kernel::kScans>;
  __shared__ typename Block::Storage storage;
  __shared__ typename Kernel::Shared shared;
  kernel(Block(storage), shared);
}

/// Of a table of tuning, whose rows begin with the architecture `from` which on they hold, the row
/// of the architecture that is compiled for. Its numbers may differ by architecture, since hosts
/// ask the device how many blocks it holds.
template <class Row, std::size_t kRows>
constexpr Row tuning_of(const Row (&table)[kRows]) {
#if defined(__CUDA_ARCH__)
  constexpr unsigned kArchitecture = __CUDA_ARCH__;
#else
  constexpr unsigned kArchitecture = 0;
#endif
  Row found = table[0];
  for (const Row& row : table)
    if (row.from <= kArchitecture) found = row;
  return found;
}

class Queue {
 public:
  explicit Queue(StreamView stream) : stream_(static_cast<cudaStream_t>(stream.handle)) {}

  /// As many blocks as can do `tasks` tasks at once, each block `tasks_a_block`; at least 1. Blocks
  /// go on with the next task until none is left.
  template <class Kernel>
  unsigned blocks_for(std::size_t tasks, unsigned tasks_a_block) const {
    const std::size_t wanted = (tasks + tasks_a_block - 1) / tasks_a_block;
    return static_cast<unsigned>(
        std::clamp<std::size_t>(wanted, 1, resident_blocks(&run_kernel<Kernel>, Kernel::kThreads)));
  }

  /// Throws CudaError where the launch is refused.
  template <class Kernel>
  void launch(const Kernel& kernel, unsigned blocks) {
    // What this launch returns: cudaGetLastError() could be an error of the caller's own.
    void* arguments[] = {const_cast<Kernel*>(&kernel)};
    check_cuda(
        cudaLaunchKernel(&run_kernel<Kernel>, blocks, Kernel::kThreads, arguments, 0, stream_),
        "launching a kernel");
  }

  /// Zeros, in the stream's order.
  void zero(void* pointer, std::size_t bytes) {
    check_cuda(cudaMemsetAsync(pointer, 0, bytes, stream_), "clearing device memory");
  }

 private:
  cudaStream_t stream_;
};

}  // namespace tersor::kernels
