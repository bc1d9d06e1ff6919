// Kernel attributes and occupancy.
#include "tests/ptx_device/runtime/api.h"
#include "tests/ptx_device/runtime/modules.h"

#include <algorithm>

namespace ptx {
namespace {

constexpr int kMostDynamic = 227 * 1024;

cudaFuncAttributes attributes_of(const Entry& entry) {
  const Kernel& kernel = *entry.kernel;
  cudaFuncAttributes made{};
  made.sharedSizeBytes = kernel.shared_bytes;
  made.localSizeBytes = kernel.local_bytes;
  made.maxThreadsPerBlock = kernel.max_threads != 0 ? static_cast<int>(kernel.max_threads) : 1024;
  made.numRegs = std::clamp(static_cast<int>(kernel.live_bytes / 4), 16, 128);
  made.ptxVersion = static_cast<int>(entry.image->module->target);
  made.binaryVersion = settings().major * 10 + settings().minor;
  made.maxDynamicSharedSizeBytes = static_cast<int>(entry.most_dynamic);
  return made;
}

int resident_blocks(const Kernel& kernel, int threads, std::size_t shared) {
  if (kernel.max_threads != 0 && threads > static_cast<int>(kernel.max_threads)) return 0;
  int most = std::min(2048 / std::max(threads, 1), 32);
  // The number of registers used by ptxas is unknown. Therefore the kernel's requested minimum of
  // blocks is used.
  if (kernel.min_blocks != 0) most = std::min(most, static_cast<int>(kernel.min_blocks));
  const std::size_t each = shared + kernel.shared_bytes + 1024;
  return std::min(most, static_cast<int>(228 * 1024 / each));
}

cudaError_t occupancy(int* blocks, const void* function, int threads, std::size_t shared) {
  Entry* entry = entry_of(function);
  if (const cudaError_t status = load(entry); status != cudaSuccess) return done(status);
  *blocks = resident_blocks(*entry->kernel, threads, shared);
  return cudaSuccess;
}

}  // namespace
}  // namespace ptx

using namespace ptx;

extern "C" {

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  PTX_API;
  Entry* entry = entry_of(function);
  if (const cudaError_t status = load(entry); status != cudaSuccess) return done(status);
  *attributes = attributes_of(*entry);
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute which, int value) {
  PTX_API;
  Entry* entry = entry_of(function);
  if (entry == nullptr) return done(cudaErrorInvalidDeviceFunction);
  if (which != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value > kMostDynamic) return done(cudaErrorInvalidValue);
  entry->most_dynamic = static_cast<std::size_t>(value);
  return cudaSuccess;
}

cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) {
  PTX_API_ALWAYS;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks,
                                                                   const void* function,
                                                                   int threads, std::size_t shared,
                                                                   unsigned) {
  PTX_API;
  return occupancy(blocks, function, threads, shared);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                          int threads, std::size_t shared) {
  PTX_API;
  return occupancy(blocks, function, threads, shared);
}

}  // extern "C"
