// Baseline kernels: the speed of memory, the cost of launches, and alternatives without Tersor.
#pragma once

#include <tersor/buffer.h>
#include <tersor/dtype.h>

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
void queue_empty(cudaStream_t stream);

struct TwoKernelCall {
  const std::byte* gradient;  ///< on a device, aligned to four values
  Dtype dtype;                ///< f32, bf16 or f16
  std::size_t count;
  float* scales;  ///< one scale per 256 values
  std::int8_t* codes;
};

/// A straightforward int8 quantisation: a kernel for the scales, followed by a kernel for the
/// codes.
void queue_two_kernels(const TwoKernelCall& call, cudaStream_t stream);

/// Variant kSort sorts pairs of key and index in descending order and takes the first k pairs.
/// Variant kSelect sorts only keys to find the k-th key. The subsequent selection takes all indices
/// with at least this key.
enum class CubTopkKind : std::uint8_t { kSort, kSelect };

/// The inputs and outputs of a call, on a device.
struct CubTopkCall {
  const float* gradient;
  float* residual;  ///< in: the old residual; out: the unsent values
  std::uint32_t* indices;
  float* values;
};

/// Top-k with feedback of `sent_count` values out of `count` values, composed of CUB's functions.
/// `count` is below 2^31. The constructor allocates all memory.
class CubTopk {
 public:
  CubTopk(CubTopkKind kind, std::size_t count, std::size_t sent_count);

  void queue(const CubTopkCall& call, cudaStream_t stream);
  std::size_t workspace_bytes() const;

 private:
  /// Queues the function, or only stores the needed bytes if `temporary` is null, as in CUB.
  cudaError_t sort(std::byte* temporary, std::size_t& bytes, cudaStream_t stream) const;
  cudaError_t select(std::byte* temporary, std::size_t& bytes, cudaStream_t stream) const;

  CubTopkKind kind_;
  int count_;
  unsigned sent_count_;
  Buffer keys_, sorted_keys_, indices_, sorted_indices_, selected_, temporary_;
};

}  // namespace tersor::bench
