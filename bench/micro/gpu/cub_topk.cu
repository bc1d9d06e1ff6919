// A kernel adds gradient and residual and writes the keys. CUB sorts or selects.
// Another kernel moves the chosen values out of the residual.

#include "bench/micro/gpu/kernels.h"

#include "bench/common/gpu/gpu.h"

#include <thrust/iterator/counting_iterator.h>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>

#include <algorithm>

namespace tersor::bench {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kKeyBits = 31;  // magnitude bits, without the sign

template <typename T>
T* as(const Buffer& buffer) {
  return reinterpret_cast<T*>(buffer.pointer());
}

/// Keys are the bits of magnitudes, which have the same order as the magnitudes. `indices` may be
/// null.
__global__ void add_kernel(const float* gradient, float* residual, unsigned count,
                           std::uint32_t* keys, std::uint32_t* indices) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  const float sum = gradient[i] + residual[i];
  residual[i] = sum;
  keys[i] = __float_as_uint(fabsf(sum));
  if (indices != nullptr) indices[i] = i;
}

/// Takes at most `sent_count` values, and at most `selected` values (null: no further limit).
__global__ void gather_kernel(const std::uint32_t* chosen, unsigned sent_count,
                              const unsigned* selected, CubTopkCall call) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= sent_count || (selected != nullptr && i >= *selected)) return;
  const std::uint32_t index = chosen[i];
  call.indices[i] = index;
  call.values[i] = call.residual[index];
  call.residual[index] = 0;
}

struct IsSelected {
  const std::uint32_t* keys;
  const std::uint32_t* smallest;
  __device__ bool operator()(std::uint32_t index) const { return keys[index] >= *smallest; }
};

unsigned grid(unsigned count) { return (count + kThreads - 1) / kThreads; }

}  // namespace

CubTopk::CubTopk(CubTopkKind kind, std::size_t count, std::size_t sent_count)
    : kind_(kind),
      count_(static_cast<int>(count)),
      sent_count_(static_cast<unsigned>(sent_count)),
      keys_(count * sizeof(std::uint32_t), Memory::kDevice),
      sorted_keys_(count * sizeof(std::uint32_t), Memory::kDevice),
      indices_(kind == CubTopkKind::kSort ? count * sizeof(std::uint32_t) : 0, Memory::kDevice),
      sorted_indices_(count * sizeof(std::uint32_t), Memory::kDevice),
      selected_(sizeof(unsigned), Memory::kDevice) {
  std::size_t for_sort = 0, for_selection = 0;
  check_cuda(sort(nullptr, for_sort, nullptr), "asking what a sort needs");
  check_cuda(select(nullptr, for_selection, nullptr), "asking what a selection needs");
  temporary_ = Buffer(std::max(for_sort, for_selection), Memory::kDevice);
}

std::size_t CubTopk::workspace_bytes() const {
  return keys_.bytes() + sorted_keys_.bytes() + indices_.bytes() + sorted_indices_.bytes() +
         temporary_.bytes();
}

cudaError_t CubTopk::sort(std::byte* temporary, std::size_t& bytes, cudaStream_t stream) const {
  const auto* keys = as<const std::uint32_t>(keys_);
  auto* sorted_keys = as<std::uint32_t>(sorted_keys_);
  if (kind_ == CubTopkKind::kSelect)
    return cub::DeviceRadixSort::SortKeysDescending(temporary, bytes, keys, sorted_keys, count_, 0,
                                                    kKeyBits, stream);
  return cub::DeviceRadixSort::SortPairsDescending(
      temporary, bytes, keys, sorted_keys, as<const std::uint32_t>(indices_),
      as<std::uint32_t>(sorted_indices_), count_, 0, kKeyBits, stream);
}

cudaError_t CubTopk::select(std::byte* temporary, std::size_t& bytes, cudaStream_t stream) const {
  const IsSelected is_selected{as<const std::uint32_t>(keys_),
                               as<const std::uint32_t>(sorted_keys_) + sent_count_ - 1};
  return cub::DeviceSelect::If(temporary, bytes, thrust::counting_iterator<std::uint32_t>(0),
                               as<std::uint32_t>(sorted_indices_), as<unsigned>(selected_), count_,
                               is_selected, stream);
}

void CubTopk::queue(const CubTopkCall& call, cudaStream_t stream) {
  const auto count = static_cast<unsigned>(count_);
  const bool sorts = kind_ == CubTopkKind::kSort;
  add_kernel<<<grid(count), kThreads, 0, stream>>>(
      call.gradient, call.residual, count, as<std::uint32_t>(keys_), as<std::uint32_t>(indices_));
  check_cuda(cudaGetLastError(), "launching a sum");
  std::size_t bytes = temporary_.bytes();
  check_cuda(sort(temporary_.pointer(), bytes, stream), "queueing a sort");
  if (!sorts) check_cuda(select(temporary_.pointer(), bytes, stream), "queueing a selection");
  gather_kernel<<<grid(sent_count_), kThreads, 0, stream>>>(
      as<const std::uint32_t>(sorted_indices_), sent_count_,
      sorts ? nullptr : as<const unsigned>(selected_), call);
  check_cuda(cudaGetLastError(), "launching a gather");
}

}  // namespace tersor::bench
