// The names of operations for devices only, and the counts of their values.
#pragma once

#include <tersor/dtype.h>

#include <cstddef>
#include <string_view>

namespace tersor::bench {

/// Encode of kTensors gradients in a single call. The reference is a flat gradient with as many
/// values. A graph does the host's part of each call once, before timing.
inline constexpr std::string_view kMultiTensor = "multi-tensor";
inline constexpr std::string_view kMultiTensorGraph = "multi-tensor, graph";

/// Encode of 1 MiB, kQueuedCalls times in a row. The reference is as many empty kernels.
inline constexpr std::string_view kSmall = "small";
inline constexpr std::string_view kSmallGraph = "small, graph";

/// The alternatives without Tersor.
inline constexpr std::string_view kTwoKernels = "encode (two kernels, plain CUDA)";
inline constexpr std::string_view kCubSort = "encode+feedback (CUB sort)";
inline constexpr std::string_view kCubSelect = "encode+feedback (CUB select)";

inline constexpr std::string_view kDeviceOnlyOperations[] = {
    kTwoKernels, kCubSort, kCubSelect, kMultiTensor, kMultiTensorGraph, kSmall, kSmallGraph};

inline constexpr std::size_t kTensors = 500;
inline constexpr std::size_t kSmallBytes = std::size_t{1} << 20;
inline constexpr std::size_t kQueuedCalls = 200;

/// The number of values of an operation. `count` is the requested count, `tensor_count` the count
/// per tensor of multi-tensor.
constexpr std::size_t count_of_operation(std::string_view name, Dtype dtype, std::size_t count,
                                         std::size_t tensor_count) {
  if (name.starts_with(kMultiTensor)) return kTensors * tensor_count;
  return name.starts_with(kSmall) ? kSmallBytes / dtype_bytes(dtype) : count;
}

}  // namespace tersor::bench
