// How kernel bodies reach memory: loads, stores and atomics of 1, 2, 4, 8 or 16 bytes, each one
// instruction but for those that the host reads.
#pragma once

#include "kernels/scalar/bits.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// 8 and 16 bytes that move at once; pointers to them are aligned to that.
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

/// For memory that no thread of the launch writes: past the first-level cache.
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

/// For memory that other blocks of the launch wrote, in the block that came last.
template <typename T>
__device__ __forceinline__ T load_fresh(const T* pointer) {
  return __ldcg(pointer);
}

template <typename T>
__device__ __forceinline__ void store(T* pointer, T value) {
  *pointer = value;
}

/// The value before.
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

/// Of words in pinned memory that the host reads while the kernel runs: it sees all that was
/// stored before no later than these.
template <typename T>
__device__ __forceinline__ void store_for_host(T* pointer, T value) {
  __threadfence_system();
  *static_cast<volatile T*>(pointer) = value;
}
/// Atomic for the threads of one device, which is all that add.
template <typename T>
__device__ __forceinline__ void add_for_host(T* pointer, T value) {
  __threadfence_system();
  atomic_add(pointer, value);
}

/// Memory that the threads of a block share; what it holds at first is not known. Kernels name
/// theirs in a struct Shared. Two threads must not meet at one element between two barriers, unless
/// both read or both add.
template <typename T, unsigned kCount>
class SharedArray {
 public:
  static constexpr unsigned kElements = kCount;

  TERSOR_DEVICE T get(std::size_t index) const { return load(values_ + index); }
  TERSOR_DEVICE void set(std::size_t index, T value) { store(values_ + index, value); }
  TERSOR_DEVICE T add(std::size_t index, T value) { return atomic_add(values_ + index, value); }

 private:
  T values_[kCount];
};

}  // namespace tersor::kernels
