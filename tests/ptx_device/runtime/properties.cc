// See properties.h.
#include "tests/ptx_device/runtime/properties.h"

#include "tests/ptx_device/machine/memory.h"
#include "tests/ptx_device/settings.h"

#include <cstdio>
#include <map>

namespace ptx {
namespace {

constexpr int kKiB = 1024, kL2 = 1 << 20;
constexpr int kMostThreads = 1024, kGridX = 0x7fffffff, kGridYZ = 65535;

void set_limits(cudaDeviceProp& made) {
  made.sharedMemPerBlock = 48 * kKiB;
  made.sharedMemPerBlockOptin = 227 * kKiB;
  made.sharedMemPerMultiprocessor = 228 * kKiB;
  made.regsPerBlock = made.regsPerMultiprocessor = 65536;
  made.warpSize = 32;
  made.maxThreadsPerBlock = kMostThreads;
  made.maxThreadsDim[0] = made.maxThreadsDim[1] = kMostThreads;
  made.maxThreadsDim[2] = 64;
  made.maxGridSize[0] = kGridX;
  made.maxGridSize[1] = made.maxGridSize[2] = kGridYZ;
  made.maxThreadsPerMultiProcessor = 2048;
  made.maxBlocksPerMultiProcessor = 32;
}

std::map<cudaDeviceAttr, int> make_attributes() {
  const Settings& asked = settings();
  return {
      {cudaDevAttrComputeCapabilityMajor, asked.major},
      {cudaDevAttrComputeCapabilityMinor, asked.minor},
      {cudaDevAttrMultiProcessorCount, asked.multiprocessors},
      {cudaDevAttrMaxThreadsPerBlock, kMostThreads},
      {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
      {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
      {cudaDevAttrMaxSharedMemoryPerBlock, 48 * kKiB},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, 227 * kKiB},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 228 * kKiB},
      {cudaDevAttrReservedSharedMemoryPerBlock, kKiB},
      {cudaDevAttrMaxRegistersPerBlock, 65536},
      {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
      {cudaDevAttrWarpSize, 32},
      {cudaDevAttrMaxGridDimX, kGridX},
      {cudaDevAttrMaxGridDimY, kGridYZ},
      {cudaDevAttrMaxGridDimZ, kGridYZ},
      {cudaDevAttrL2CacheSize, kL2},
      {cudaDevAttrMemoryPoolsSupported, 1},
      {cudaDevAttrUnifiedAddressing, 1},
      {cudaDevAttrManagedMemory, 1},
      {cudaDevAttrConcurrentManagedAccess, 1},
      {cudaDevAttrConcurrentKernels, 1},
      {cudaDevAttrCanMapHostMemory, 1},
      {cudaDevAttrClockRate, 1755000},
      {cudaDevAttrMemoryClockRate, 2619000},
      {cudaDevAttrGlobalMemoryBusWidth, 5120},
  };
}

}  // namespace

cudaDeviceProp device_properties() {
  cudaDeviceProp made{};
  std::snprintf(made.name, sizeof made.name, "PTX device (interpreted)");
  made.totalGlobalMem = Memory::get().total();
  made.major = settings().major;
  made.minor = settings().minor;
  made.multiProcessorCount = settings().multiprocessors;
  made.l2CacheSize = kL2;
  made.memoryBusWidth = 5120;
  made.managedMemory = made.concurrentManagedAccess = 1;
  made.unifiedAddressing = made.canMapHostMemory = 1;
  made.asyncEngineCount = 3;
  made.concurrentKernels = 1;
  set_limits(made);
  return made;
}

int device_attribute(cudaDeviceAttr which) {
  static const auto* known = new std::map(make_attributes());
  const auto found = known->find(which);
  return found == known->end() ? 0 : found->second;
}

}  // namespace ptx
