// Memory accesses of kernel bodies: loads, stores and atomics of 1, 2, 4, 8 or 16 bytes. Each
// access is a single instruction, except stores to words that the host reads.
#pragma once

#include "kernels/scalar/bits.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// 8 and 16 bytes, moved at once. Pointers must be aligned to the size.
struct alignas(8) Words64 {
  std::uint32_t word[2];
};
struct alignas(16) Words128 {
  std::uint32_t word[4];
};

template <typename T>
__device__ __forceinline__ T load(const T* pointer) {
  return *pointer;
}

/// Loads memory that no thread of the launch writes. Wide loads bypass the first-level cache.
template <typename T>
__device__ __forceinline__ T load_input(const T* pointer) {
  return __ldg(pointer);
}
template <>
__device__ __forceinline__ Words64 load_input(const Words64* pointer) {
  Words64 value;
  asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
      : "=r"(value.word[0]), "=r"(value.word[1])
      : "l"(pointer));
  return value;
}
template <>
__device__ __forceinline__ Words128 load_input(const Words128* pointer) {
  Words128 value;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(value.word[0]), "=r"(value.word[1]), "=r"(value.word[2]), "=r"(value.word[3])
      : "l"(pointer));
  return value;
}

/// Loads memory written by other blocks of the launch. Call only in the last block.
template <typename T>
__device__ __forceinline__ T load_fresh(const T* pointer) {
  return __ldcg(pointer);
}

template <typename T>
__device__ __forceinline__ void store(T* pointer, T value) {
  *pointer = value;
}

/// Returns the pointer to global memory. The compiler then adds constant offsets to the pointer,
/// instead of computing an address for each offset.
template <typename T>
__device__ __forceinline__ T* base_address(T* pointer) {
  asm("" : "+l"(pointer));
  __builtin_assume(__isGlobal(pointer));
  return pointer;
}

/// Adds and returns the previous value.
__device__ __forceinline__ std::uint32_t atomic_add(std::uint32_t* pointer, std::uint32_t value) {
  return atomicAdd(pointer, value);
}
__device__ __forceinline__ std::uint64_t atomic_add(std::uint64_t* pointer, std::uint64_t value) {
  static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
  return atomicAdd(reinterpret_cast<unsigned long long*>(pointer), value);
}
__device__ __forceinline__ double atomic_add(double* pointer, double value) {
  return atomicAdd(pointer, value);
}

/// Stores to a word in pinned memory for a host that polls the word. If the host sees the word, the
/// host also sees all earlier stores.
template <typename T>
__device__ __forceinline__ void store_for_host(T* pointer, T value) {
  __threadfence_system();
  *static_cast<volatile T*>(pointer) = value;
}
/// Like store_for_host, but adds. Atomic among the threads of one device. No other device adds.
template <typename T>
__device__ __forceinline__ void add_for_host(T* pointer, T value) {
  __threadfence_system();
  atomic_add(pointer, value);
}

/// Starts a copy of kBytes bytes from global memory that no thread of the launch writes to shared
/// memory. The copy arrives when the thread waits for it.
template <unsigned kBytes>
__device__ __forceinline__ void async_copy(void* shared, const void* global) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16)  // past the first-level cache
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(kBytes)
                 : "memory");
}
/// Waits for this thread's copies. Other threads see the copies after a barrier.
__device__ __forceinline__ void async_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Memory shared by the threads of a block, initially undefined. Kernels declare their arrays in a
/// struct Shared. Between two barriers, two threads may access the same element only if both read
/// or both add.
template <typename T, unsigned kCount>
class SharedArray {
 public:
  TERSOR_DEVICE T get(std::size_t index) const { return load(values_ + index); }
  TERSOR_DEVICE void set(std::size_t index, T value) { store(values_ + index, value); }
  TERSOR_DEVICE T add(std::size_t index, T value) { return atomic_add(values_ + index, value); }
  /// Starts to copy an element. See async_copy.
  TERSOR_DEVICE void fetch(std::size_t index, const T* from) {
    async_copy<sizeof(T)>(values_ + index, from);
  }

 private:
  T values_[kCount];
};

}  // namespace tersor::kernels
