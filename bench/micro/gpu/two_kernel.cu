// Plain CUDA, reasonably optimised. A warp of the first kernel processes a block
// of 256 values. A thread of the second kernel loads and stores four values in one access each. The
// kernels read the gradient twice (9 bytes per f32 value) and divide each value by the scale.

#include "bench/micro/gpu/kernels.h"

#include "bench/common/gpu/gpu.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace tersor::bench {
namespace {

constexpr std::size_t kBlock = 256;  // values per scale
constexpr unsigned kThreads = 256;
constexpr unsigned kWarp = 32;
constexpr unsigned kLevels = 127;

__device__ float to_float(float value) { return value; }
__device__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ float to_float(__half value) { return __half2float(value); }

template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T values[4];
};

template <typename T>
__global__ void scale_kernel(const T* gradient, std::size_t count, float* scales) {
  const std::size_t block = (std::size_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  const unsigned lane = threadIdx.x % kWarp;
  float largest = 0;
#pragma unroll
  for (unsigned i = 0; i < kBlock; i += kWarp) {
    const std::size_t at = block * kBlock + i + lane;
    if (at < count) largest = fmaxf(largest, fabsf(to_float(gradient[at])));
  }
  for (unsigned mask = kWarp / 2; mask != 0; mask /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
  if (lane == 0 && block * kBlock < count) scales[block] = largest / kLevels;
}

__device__ std::int8_t code_of(float value, float scale) {
  return scale > 0 ? static_cast<std::int8_t>(rintf(value / scale)) : 0;
}

template <typename T>
__global__ void code_kernel(const T* gradient, std::size_t count, const float* scales,
                            std::int8_t* codes) {
  const std::size_t first = (std::size_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  if (first >= count) return;
  const float scale = scales[first / kBlock];
  if (first + 4 > count) {
    for (std::size_t i = first; i < count; ++i) codes[i] = code_of(to_float(gradient[i]), scale);
    return;
  }
  const auto loaded = *reinterpret_cast<const Four<T>*>(gradient + first);
  Four<std::int8_t> coded;
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) coded.values[i] = code_of(to_float(loaded.values[i]), scale);
  *reinterpret_cast<Four<std::int8_t>*>(codes + first) = coded;
}

unsigned grid(std::size_t count, std::size_t values_of_a_grid_block) {
  return static_cast<unsigned>((count + values_of_a_grid_block - 1) / values_of_a_grid_block);
}

template <typename T>
void queue_kernels(const TwoKernelCall& call, cudaStream_t stream) {
  const auto* gradient = reinterpret_cast<const T*>(call.gradient);
  scale_kernel<<<grid(call.count, kThreads / kWarp * kBlock), kThreads, 0, stream>>>(
      gradient, call.count, call.scales);
  code_kernel<<<grid(call.count, kThreads * 4), kThreads, 0, stream>>>(gradient, call.count,
                                                                       call.scales, call.codes);
  check_cuda(cudaGetLastError(), "launching two kernels");
}

}  // namespace

void queue_two_kernels(const TwoKernelCall& call, cudaStream_t stream) {
  if (call.count == 0) return;
  if (call.dtype == Dtype::kBf16) return queue_kernels<__nv_bfloat16>(call, stream);
  if (call.dtype == Dtype::kF16) return queue_kernels<__half>(call, stream);
  queue_kernels<float>(call, stream);
}

}  // namespace tersor::bench
