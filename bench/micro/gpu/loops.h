// Baseline kernels for the speed of memory and the cost of launches.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tersor::bench {

/// Reads `bytes` (rounded down to 16) from an address aligned to 16 bytes. A thread writes `sink`
/// only if the XOR of its words equals a fixed number, one of 2^32. The compiler therefore keeps
/// the reads.
void queue_read(const void* pointer, std::size_t bytes, std::uint32_t* sink, cudaStream_t stream);

/// Fills `bytes` (rounded down to 4) with random words.
void queue_noise(void* pointer, std::size_t bytes, cudaStream_t stream);

/// Queues an empty kernel of a single block.
void queue_nothing(cudaStream_t stream);

}  // namespace tersor::bench
