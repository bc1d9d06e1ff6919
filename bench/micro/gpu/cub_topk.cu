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
  std::size_t sort = 0, select = 0;
  std::uint32_t* none = nullptr;
  check_cuda(kind == CubTopkKind::kSort
                 ? cub::DeviceRadixSort::SortPairsDescending(nullptr, sort, none, none, none, none,
                                                             count_, 0, kKeyBits)
                 : cub::DeviceRadixSort::SortKeysDescending(nullptr, sort, none, none, count_, 0,
                                                            kKeyBits),
             "asking what a sort needs");
  check_cuda(cub::DeviceSelect::If(nullptr, select, thrust::counting_iterator<std::uint32_t>(0),
                                   none, as<unsigned>(selected_), count_, IsSelected{}),
             "asking what a selection needs");
  temporary_ = Buffer(std::max(sort, select), Memory::kDevice);
}

std::size_t CubTopk::workspace_bytes() const {
  return keys_.bytes() + sorted_keys_.bytes() + indices_.bytes() + sorted_indices_.bytes() +
         temporary_.bytes();
}

void CubTopk::queue_sort(cudaStream_t stream) {
  std::size_t bytes = temporary_.bytes();
  check_cuda(cub::DeviceRadixSort::SortPairsDescending(
                 temporary_.pointer(), bytes, as<const std::uint32_t>(keys_),
                 as<std::uint32_t>(sorted_keys_), as<const std::uint32_t>(indices_),
                 as<std::uint32_t>(sorted_indices_), count_, 0, kKeyBits, stream),
             "queueing a sort of pairs");
}

void CubTopk::queue_select(cudaStream_t stream) {
  std::size_t bytes = temporary_.bytes();
  check_cuda(cub::DeviceRadixSort::SortKeysDescending(
                 temporary_.pointer(), bytes, as<const std::uint32_t>(keys_),
                 as<std::uint32_t>(sorted_keys_), count_, 0, kKeyBits, stream),
             "queueing a sort of keys");
  const IsSelected is_selected{as<const std::uint32_t>(keys_),
                               as<const std::uint32_t>(sorted_keys_) + sent_count_ - 1};
  bytes = temporary_.bytes();
  check_cuda(cub::DeviceSelect::If(temporary_.pointer(), bytes,
                                   thrust::counting_iterator<std::uint32_t>(0),
                                   as<std::uint32_t>(sorted_indices_), as<unsigned>(selected_),
                                   count_, is_selected, stream),
             "queueing a selection");
}

void CubTopk::queue(const CubTopkCall& call, cudaStream_t stream) {
  const auto count = static_cast<unsigned>(count_);
  const bool sorts = kind_ == CubTopkKind::kSort;
  add_kernel<<<grid(count), kThreads, 0, stream>>>(
      call.gradient, call.residual, count, as<std::uint32_t>(keys_), as<std::uint32_t>(indices_));
  check_cuda(cudaGetLastError(), "launching a sum");
  if (sorts)
    queue_sort(stream);
  else
    queue_select(stream);
  gather_kernel<<<grid(sent_count_), kThreads, 0, stream>>>(
      as<const std::uint32_t>(sorted_indices_), sent_count_,
      sorts ? nullptr : as<const unsigned>(selected_), call);
  check_cuda(cudaGetLastError(), "launching a gather");
}

}  // namespace tersor::bench
