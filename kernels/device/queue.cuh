// Kernel launches: a Queue wraps the caller's stream. A kernel is a struct that is copied into the
// launch. LaunchBounds defines the constants and an empty Shared:
//   static constexpr unsigned kThreads;          threads per block, a multiple of 32
//   static constexpr unsigned kResident;         minimum blocks per multiprocessor:
//                                                65,536 / (kThreads * kResident) registers
//                                                per thread
//   static constexpr bool kScans;                true if the kernel calls block.exclusive_sum
//   struct Shared;                               SharedArrays, or empty
//   template <class Block> void operator()(const Block& block, Shared& shared) const;
// A launch neither waits nor allocates.
#pragma once

#include "kernels/device/cuda_error.h"
#include "kernels/device/group.cuh"

#include <tersor/stream.h>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

namespace tersor::kernels {

/// The base class of most kernels. A kernel with shared memory defines its own Shared.
template <unsigned kBlockThreads, unsigned kMinBlocks, bool kCallsScan = false>
struct LaunchBounds {
  static constexpr unsigned kThreads = kBlockThreads;
  static constexpr unsigned kResident = kMinBlocks;
  static constexpr bool kScans = kCallsScan;
  struct Shared {};
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kResident)
    run_kernel(const __grid_constant__ Kernel kernel) {
  using Block = DeviceBlock<Kernel::kThreads, Kernel::kScans>;
  __shared__ typename Block::Storage storage;
  __shared__ typename Kernel::Shared shared;
  kernel(Block(storage), shared);
}

/// Selects from a tuning table the row for the compiled architecture. Each row applies to
/// architectures from `from` upwards. The values may differ by architecture, because the host
/// queries the device for the number of resident blocks.
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

  /// Returns the number of blocks for `tasks` tasks, `tasks_per_block` per block, limited to the
  /// resident blocks and at least 1. Each block loops until no task is left.
  template <class Kernel>
  unsigned blocks_for(std::size_t tasks, unsigned tasks_per_block) const {
    const std::size_t wanted = (tasks + tasks_per_block - 1) / tasks_per_block;
    return static_cast<unsigned>(std::clamp<std::size_t>(wanted, 1, resident<Kernel>()));
  }

  /// Returns the number of blocks that the device runs at a time.
  template <class Kernel>
  std::size_t resident() const {
    return resident_blocks(&run_kernel<Kernel>, Kernel::kThreads);
  }

  /// Throws CudaError if the launch is refused.
  template <class Kernel>
  void launch(const Kernel& kernel, unsigned blocks) {
    // Checks the launch's own status, because cudaGetLastError() could return an earlier error of
    // the caller.
    void* arguments[] = {const_cast<Kernel*>(&kernel)};
    check_cuda(
        cudaLaunchKernel(&run_kernel<Kernel>, blocks, Kernel::kThreads, arguments, 0, stream_),
        "launching a kernel");
  }

  /// Launches blocks for `tasks` tasks, `tasks_per_block` per block.
  template <class Kernel>
  void launch_tasks(const Kernel& kernel, std::size_t tasks, unsigned tasks_per_block) {
    launch(kernel, blocks_for<Kernel>(tasks, tasks_per_block));
  }

  /// Queues a memset to zero.
  void zero(void* pointer, std::size_t bytes) {
    check_cuda(cudaMemsetAsync(pointer, 0, bytes, stream_), "clearing device memory");
  }

 private:
  cudaStream_t stream_;
};

}  // namespace tersor::kernels
