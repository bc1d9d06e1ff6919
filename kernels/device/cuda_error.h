// The CUDA runtime's errors as exceptions, and what the launcher asks of the runtime. For builds
// with CUDA only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace tersor::kernels {

/// Throws OutOfMemory or CudaError that says what was being done.
void check_cuda(cudaError_t status, const char* doing);

/// How many blocks of a kernel the current device runs at once; asked once for each kernel.
std::size_t resident_blocks(const void* kernel, unsigned threads);

template <typename... Arguments>
std::size_t resident_blocks(void (*kernel)(Arguments...), unsigned threads) {
  return resident_blocks(reinterpret_cast<const void*>(kernel), threads);
}

}  // namespace tersor::kernels
