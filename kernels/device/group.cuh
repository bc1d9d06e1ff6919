// The thread groups of a device: what kernel bodies are templates over. Every thread of a group
// calls its members, and all in one order.
#pragma once

#include "kernels/scalar/bits.h"

#include <cub/block/block_scan.cuh>

#include <cstdint>

namespace tersor::kernels {

constexpr unsigned kWarpThreads = 32;

class DeviceWarp {
 public:
  TERSOR_DEVICE unsigned thread_rank() const { return threadIdx.x % kWarpThreads; }

  /// The largest value of all 32 threads.
  TERSOR_DEVICE std::uint32_t maximum(std::uint32_t value) const {
    return __reduce_max_sync(~0u, value);
  }
  /// The sum over all 32 threads, modulo 2^32.
  TERSOR_DEVICE std::uint32_t add(std::uint32_t value) const {
    return __reduce_add_sync(~0u, value);
  }
  /// What all threads wrote before is read behind it.
  TERSOR_DEVICE void sync() const { __syncwarp(); }
  /// The value that thread `rank ^ mask` gave.
  TERSOR_DEVICE std::uint32_t shuffle_xor(std::uint32_t value, unsigned mask) const {
    return __shfl_xor_sync(~0u, value, mask);
  }
  /// The value that thread `rank` gave.
  TERSOR_DEVICE std::uint32_t shuffle(std::uint32_t value, unsigned rank) const {
    return __shfl_sync(~0u, value, static_cast<int>(rank));
  }
  /// Bit i: what thread i said.
  TERSOR_DEVICE std::uint32_t ballot(bool flag) const { return __ballot_sync(~0u, flag); }
  /// The sum over all 32 threads, modulo 2^64.
  TERSOR_DEVICE std::uint64_t sum(std::uint64_t value) const {
    for (unsigned mask = kWarpThreads / 2; mask != 0; mask /= 2)
      value += __shfl_xor_sync(~0u, value, mask);
    return value;
  }
};

/// What a block's scans work in; empty for kernels without any.
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

  /// A barrier: what was written before is read behind it.
  TERSOR_DEVICE void sync() const { __syncthreads(); }
  /// A barrier; true where any thread said so.
  TERSOR_DEVICE bool any(bool flag) const { return __syncthreads_or(flag); }

  /// A barrier; the sum over the threads before this one, and over all.
  TERSOR_DEVICE std::uint64_t exclusive_sum(std::uint64_t value, std::uint64_t& total) const {
    static_assert(kScans, "a kernel that scans says so: kScans");
    std::uint64_t before;
    cub::BlockScan<std::uint64_t, kThreads>(storage_.scan).ExclusiveSum(value, before, total);
    __syncthreads();
    return before;
  }

  /// A barrier; true in the block that comes last, which then sees all that the others wrote.
  /// `ticket` is 0 before the launch and counts the blocks.
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
