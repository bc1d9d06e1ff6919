// Kernels of the benchmarks' own that stand for what the memory and the launcher can do.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tersor::bench {

/// Reads `bytes` (rounded down to 16) at a multiple of 16. `sink` is written only if the sum of all
/// is one number of 2^32, so that the reads cannot be left out.
void queue_read(const void* pointer, std::size_t bytes, std::uint32_t* sink, cudaStream_t stream);

/// Fills `bytes` (rounded down to 4) with words of noise.
void queue_noise(void* pointer, std::size_t bytes, cudaStream_t stream);

/// A kernel that does nothing, of one block.
void queue_nothing(cudaStream_t stream);

}  // namespace tersor::bench
