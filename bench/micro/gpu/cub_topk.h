// Top-k with feedback, composed of CUB's functions.
#pragma once

#include <tersor/buffer.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tersor::bench {

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

/// Top-k of `sent_count` values out of `count` values, with `count` below 2^31. The constructor
/// allocates all memory.
class CubTopk {
 public:
  CubTopk(CubTopkKind kind, std::size_t count, std::size_t sent_count);

  void queue(const CubTopkCall& call, cudaStream_t stream);
  std::size_t workspace_bytes() const;

 private:
  void queue_sort(cudaStream_t stream);
  void queue_select(cudaStream_t stream);

  CubTopkKind kind_;
  int count_;
  unsigned sent_count_;
  Buffer keys_, sorted_keys_, indices_, sorted_indices_, selected_, temporary_;
};

}  // namespace tersor::bench
