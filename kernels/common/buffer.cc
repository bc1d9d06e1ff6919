// Implements <tersor/buffer.h>.
#include <tersor/align.h>
#include <tersor/buffer.h>

#include "kernels/common/device.h"

#if TERSOR_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

#include <cstdlib>
#include <string>

namespace tersor {
namespace {

constexpr std::size_t kAlignment = 64;

[[noreturn]] void throw_out_of_memory(std::size_t bytes, const char* where) {
  throw OutOfMemory("no " + std::to_string(bytes) + " bytes of " + where + " memory");
}

std::byte* allocate_host(std::size_t bytes) {
  void* pointer = std::aligned_alloc(kAlignment, align_up(bytes, kAlignment));
  if (pointer == nullptr) throw_out_of_memory(bytes, "host");
  return static_cast<std::byte*>(pointer);
}

#if TERSOR_HAS_CUDA
std::byte* allocate_device(std::size_t bytes) {
  kernels::require_device();
  void* pointer = nullptr;
  const cudaError_t status = cudaMalloc(&pointer, bytes);
  if (status != cudaSuccess) (void)cudaGetLastError();  // said here
  if (status == cudaErrorMemoryAllocation) throw_out_of_memory(bytes, "device");
  if (status != cudaSuccess)
    throw CudaError(std::string("device memory: ") + cudaGetErrorString(status));
  return static_cast<std::byte*>(pointer);
}

void free_device(std::byte* pointer) { cudaFree(pointer); }
#else
std::byte* allocate_device(std::size_t) {
  kernels::require_device();
  return nullptr;
}

void free_device(std::byte*) {}
#endif

}  // namespace

Buffer::Buffer(std::size_t bytes, Memory memory) : bytes_(bytes), memory_(memory) {
  if (bytes == 0) return;
  pointer_ = memory == Memory::kHost ? allocate_host(bytes) : allocate_device(bytes);
}

Buffer::~Buffer() {
  if (memory_ == Memory::kHost) {
    std::free(pointer_);
  } else if (pointer_ != nullptr) {
    free_device(pointer_);
  }
}

ValueSpan Buffer::values(std::size_t count, Dtype dtype) const {
  if (count > bytes_ / dtype_bytes(dtype))
    throw InvalidArgument(std::to_string(count) + " values of " + std::string(dtype_name(dtype)) +
                          " do not fit into a buffer of " + std::to_string(bytes_) + " bytes");
  return {pointer_, count, dtype, memory_};
}

}  // namespace tersor
