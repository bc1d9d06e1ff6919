// Implements device_memory.h.
#include "kernels/device/device_memory.h"

#include "kernels/device/device.h"

#if TERSOR_HAS_CUDA
#include "kernels/device/cuda_error.h"

#include <tersor/error.h>

#include <cstring>
#include <string>
#endif

namespace tersor::kernels {
#if TERSOR_HAS_CUDA
namespace {

/// Throws if an allocation failed. `where` names the kind of memory.
void check_allocation(cudaError_t status, std::size_t bytes, const std::string& where) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // clears the error, which is reported here
  if (status == cudaErrorMemoryAllocation)
    throw OutOfMemoryError("cannot allocate " + std::to_string(bytes) + " bytes of " + where +
                           " memory");
  throw CudaError(where + " memory: " + cudaGetErrorString(status));
}

}  // namespace

std::byte* allocate_device(std::size_t bytes) {
  require_device();
  void* pointer = nullptr;
  check_allocation(cudaMalloc(&pointer, bytes), bytes, "device");
  return static_cast<std::byte*>(pointer);
}

void free_device(std::byte* memory) noexcept { cudaFree(memory); }

std::byte* allocate_pinned(std::size_t bytes) {
  require_device();
  void* pointer = nullptr;
  const unsigned flags = cudaHostAllocPortable | cudaHostAllocMapped;
  check_allocation(cudaHostAlloc(&pointer, bytes, flags), bytes, "pinned host");
  std::memset(pointer, 0, bytes);
  return static_cast<std::byte*>(pointer);
}

void free_pinned(std::byte* memory) noexcept { cudaFreeHost(memory); }

void copy_bytes(void* to, const void* from, std::size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)),
             "copying on a stream");
}

void zero_bytes(void* memory, std::size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  check_cuda(cudaMemsetAsync(memory, 0, bytes, stream_of(stream)), "clearing device memory");
}

#else

std::byte* allocate_device(std::size_t) {
  require_device();
  return nullptr;
}
void free_device(std::byte*) noexcept {}
std::byte* allocate_pinned(std::size_t) {
  require_device();
  return nullptr;
}
void free_pinned(std::byte*) noexcept {}
void copy_bytes(void*, const void*, std::size_t, StreamView) { require_device(); }
void zero_bytes(void*, std::size_t, StreamView) { require_device(); }

#endif
}  // namespace tersor::kernels
