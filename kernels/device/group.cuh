// The thread groups of a device, used as template parameters of kernel bodies. All threads of a
// group must call its members, in the same order.
#pragma once

#include "kernels/scalar/bits.h"

#include <cub/block/block_scan.cuh>

#include <cstdint>

namespace tersor::kernels {

constexpr unsigned kWarpThreads = 32;

class DeviceWarp {
 public:
  TERSOR_DEVICE unsigned thread_rank() const { return threadIdx.x % kWarpThreads; }

  /// Returns the maximum over all 32 threads.
  TERSOR_DEVICE std::uint32_t maximum(std::uint32_t value) const {
    return __reduce_max_sync(~0u, value);
  }
  /// Returns the sum over all 32 threads, modulo 2^32.
  TERSOR_DEVICE std::uint32_t add(std::uint32_t value) const {
    return __reduce_add_sync(~0u, value);
  }
  /// Returns the sum over all lower threads, modulo 2^32.
  TERSOR_DEVICE std::uint32_t exclusive_sum(std::uint32_t value) const {
    std::uint32_t sum = value;
    for (unsigned distance = 1; distance < kWarpThreads; distance *= 2)
      sum += __shfl_up_sync(~0u, sum, distance) * (thread_rank() >= distance);
    return sum - value;
  }
  /// A barrier. Earlier writes of the warp are visible after the barrier.
  TERSOR_DEVICE void sync() const { __syncwarp(); }
  /// Returns the value of thread `rank ^ mask`.
  TERSOR_DEVICE std::uint32_t shuffle_xor(std::uint32_t value, unsigned mask) const {
    return __shfl_xor_sync(~0u, value, mask);
  }
  /// Returns the value of thread `rank`.
  TERSOR_DEVICE std::uint32_t shuffle(std::uint32_t value, unsigned rank) const {
    return __shfl_sync(~0u, value, static_cast<int>(rank));
  }
  /// Returns a mask. Bit i is the flag of thread i.
  TERSOR_DEVICE std::uint32_t ballot(bool flag) const { return __ballot_sync(~0u, flag); }
  /// Returns the sum over all 32 threads, modulo 2^64.
  TERSOR_DEVICE std::uint64_t sum(std::uint64_t value) const {
    for (unsigned mask = kWarpThreads / 2; mask != 0; mask /= 2)
      value += __shfl_xor_sync(~0u, value, mask);
    return value;
  }
};

/// The shared memory of a block's scans. Empty for kernels without scans.
template <unsigned kThreads, bool kScans>
struct DeviceBlockStorage {};
template <unsigned kThreads>
struct DeviceBlockStorage<kThreads, true> {
  typename cub::BlockScan<std::uint64_t, kThreads>::TempStorage scan;
};

template <unsigned kThreads, bool kScans>
class DeviceBlock {
 public:
  using Storage = DeviceBlockStorage<kThreads, kScans>;

  TERSOR_DEVICE explicit DeviceBlock(Storage& storage) : storage_(storage) {}

  static constexpr unsigned threads() { return kThreads; }
  static constexpr unsigned warps() { return kThreads / kWarpThreads; }
  TERSOR_DEVICE unsigned thread_rank() const { return threadIdx.x; }
  TERSOR_DEVICE unsigned warp_rank() const { return threadIdx.x / kWarpThreads; }
  TERSOR_DEVICE unsigned rank() const { return blockIdx.x; }
  TERSOR_DEVICE unsigned blocks() const { return gridDim.x; }
  TERSOR_DEVICE DeviceWarp warp() const { return {}; }

  /// A barrier. Earlier writes of the block are visible after the barrier.
  TERSOR_DEVICE void sync() const { __syncthreads(); }
  /// A barrier. True if the flag of any thread is true.
  TERSOR_DEVICE bool any(bool flag) const { return __syncthreads_or(flag); }

  /// A barrier. Returns the sum over all lower thread ranks, and sets `total` to the sum over all
  /// threads.
  TERSOR_DEVICE std::uint64_t exclusive_sum(std::uint64_t value, std::uint64_t& total) const {
    static_assert(kScans, "a kernel that scans says so: kScans");
    std::uint64_t before;
    cub::BlockScan<std::uint64_t, kThreads>(storage_.scan).ExclusiveSum(value, before, total);
    __syncthreads();
    return before;
  }

  /// A barrier. True in the last block to arrive. The last block sees all writes of the other
  /// blocks. `ticket` must be 0 before the launch and counts the blocks.
  TERSOR_DEVICE bool is_last(std::uint32_t* ticket) const {
    __threadfence();
    __syncthreads();
    bool last = false;
    if (threadIdx.x == 0) last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    last = __syncthreads_or(last);
    if (last) __threadfence();
    return last;
  }

 private:
  Storage& storage_;
};

}  // namespace tersor::kernels
