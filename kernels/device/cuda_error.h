// Converts CUDA runtime errors to exceptions, and queries the occupancy of kernels. Only for builds
// with CUDA.
#pragma once

#include <cuda_runtime_api.h>
#include <tersor/stream.h>

#include <cstddef>

namespace tersor::kernels {

/// Returns the CUDA stream of a view.
inline cudaStream_t stream_of(StreamView stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

/// Throws OutOfMemoryError or CudaError for a failed status. The message contains `action`.
void check_cuda(cudaError_t status, const char* action);

/// Returns the number of blocks of a kernel that the current device runs at once. The result is
/// cached per kernel.
std::size_t resident_blocks(const void* kernel, unsigned threads);

template <typename... Arguments>
std::size_t resident_blocks(void (*kernel)(Arguments...), unsigned threads) {
  return resident_blocks(reinterpret_cast<const void*>(kernel), threads);
}

}  // namespace tersor::kernels
