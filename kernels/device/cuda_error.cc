// Implements cuda_error.h.
#if TERSOR_HAS_CUDA

#include "kernels/device/cuda_error.h"

#include <tersor/error.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace tersor::kernels {

void check_cuda(cudaError_t status, const char* action) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // otherwise the caller's next CUDA call reports the error again
  const std::string text = std::string(action) + ": " + cudaGetErrorString(status);
  if (status == cudaErrorMemoryAllocation) throw OutOfMemoryError(text);
  throw CudaError(text);
}

std::size_t resident_blocks(const void* kernel, unsigned threads) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, std::size_t> known;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "asking for the current device");
  const std::lock_guard lock(mutex);
  std::size_t& blocks = known[{device, kernel}];
  if (blocks != 0) return blocks;
  int blocks_per_multiprocessor = 0, multiprocessors = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_multiprocessor, kernel,
                                                           static_cast<int>(threads), 0),
             "asking how many blocks of a kernel are resident");
  check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
             "asking for the number of multiprocessors");
  return blocks = static_cast<std::size_t>(blocks_per_multiprocessor) *
                  static_cast<std::size_t>(multiprocessors);
}

}  // namespace tersor::kernels

#endif
