// Top-k with feedback, composed from what CUB offers.
#pragma once

#include <tersor/buffer.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tersor::bench {

/// sort: keys with their indices in descending order, of which the first k are taken. select: the
/// keys alone sorted for the k-th, then all indices whose key is no smaller.
enum class CubTopkKind : std::uint8_t { kSort, kSelect };

/// What one call reads and writes, on a device.
struct CubTopkCall {
  const float* gradient;
  float* residual;  ///< in: what was kept, out: what is not sent
  std::uint32_t* indices;
  float* values;
};

/// The work for `count` values below 2^31 of which `kept` are sent; its memory is allocated once.
class CubTopk {
 public:
  CubTopk(CubTopkKind kind, std::size_t count, std::size_t kept);

  void queue(const CubTopkCall& call, cudaStream_t stream);
  std::size_t workspace_bytes() const;

 private:
  void queue_sort(cudaStream_t stream);
  void queue_select(cudaStream_t stream);

  CubTopkKind kind_;
  int count_;
  unsigned kept_;
  Buffer keys_, sorted_keys_, indices_, sorted_indices_, selected_, temporary_;
};

}  // namespace tersor::bench
