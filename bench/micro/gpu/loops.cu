// Grids have as many blocks as the device can run at once. Each thread strides through
// the memory by the grid's size, with four 16-byte loads in flight.

#include "bench/micro/gpu/kernels.h"

#include "bench/common/gpu/gpu.h"

#include <algorithm>

namespace tersor::bench {
namespace {

constexpr unsigned kThreads = 512;
constexpr unsigned kResident = 4;  // blocks per multiprocessor
constexpr unsigned kLoads = 4;
constexpr std::uint32_t kUnlikely = 0x9e3779b9;

__device__ std::uint32_t folded(uint4 words) { return words.x ^ words.y ^ words.z ^ words.w; }

__global__ void __launch_bounds__(kThreads, kResident)
    read_kernel(const uint4* words, std::size_t count, std::uint32_t* sink) {
  const std::size_t stride = std::size_t{gridDim.x} * kThreads;
  std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
  std::uint32_t sum = 0;
  for (; i + (kLoads - 1) * stride < count; i += kLoads * stride) {
    uint4 loaded[kLoads];
#pragma unroll
    for (unsigned j = 0; j < kLoads; ++j) loaded[j] = __ldg(words + i + j * stride);
#pragma unroll
    for (unsigned j = 0; j < kLoads; ++j) sum ^= folded(loaded[j]);
  }
  for (; i < count; i += stride) sum ^= folded(__ldg(words + i));
  if (sum == kUnlikely) *sink = sum;
}

__global__ void noise_kernel(std::uint32_t* words, std::size_t count) {
  const std::size_t stride = std::size_t{gridDim.x} * kThreads;
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    std::uint32_t word = static_cast<std::uint32_t>(i) * 0x9e3779b9u;
    word = (word ^ word >> 16) * 0x85ebca6bu;
    words[i] = word ^ word >> 13;
  }
}

__global__ void empty_kernel() {}

unsigned blocks_for(std::size_t items) {
  int device = 0, multiprocessors = 0;
  check_cuda(cudaGetDevice(&device), "asking for the current device");
  check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
             "asking for the multiprocessors");
  const std::size_t resident = static_cast<std::size_t>(multiprocessors) * kResident;
  return static_cast<unsigned>(
      std::clamp<std::size_t>((items + kThreads - 1) / kThreads, 1, resident));
}

}  // namespace

void queue_read(const void* pointer, std::size_t bytes, std::uint32_t* sink, cudaStream_t stream) {
  const std::size_t count = bytes / sizeof(uint4);
  read_kernel<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<const uint4*>(pointer), count,
                                                          sink);
  check_cuda(cudaGetLastError(), "launching a read");
}

void queue_noise(void* pointer, std::size_t bytes, cudaStream_t stream) {
  const std::size_t count = bytes / sizeof(std::uint32_t);
  noise_kernel<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<std::uint32_t*>(pointer),
                                                           count);
  check_cuda(cudaGetLastError(), "launching noise");
}

void queue_empty(cudaStream_t stream) {
  empty_kernel<<<1, 32, 0, stream>>>();
  check_cuda(cudaGetLastError(), "launching an empty kernel");
}

}  // namespace tersor::bench
