// A straightforward int8 quantisation: a kernel for the scales, followed by a kernel for the codes.
#pragma once

#include <tersor/dtype.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tersor::bench {

struct TwoKernelCall {
  const std::byte* gradient;  ///< on a device, aligned to four values
  Dtype dtype;                ///< f32, bf16 or f16
  std::size_t count;
  float* scales;  ///< one scale per 256 values
  std::int8_t* codes;
};

void queue_two_kernels(const TwoKernelCall& call, cudaStream_t stream);

}  // namespace tersor::bench
