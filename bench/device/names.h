// The names of the operations that only a device has, and of how many values they are.
#pragma once

#include <tersor/dtype.h>

#include <cstddef>
#include <string_view>

namespace tersor::bench {

/// Encode of kTensors gradients in one call; the reference is one flat gradient of as many values.
/// In a graph the host's part of each call is done once, before the clock runs.
inline constexpr std::string_view kMultiTensor = "multi-tensor";
inline constexpr std::string_view kMultiTensorGraph = "multi-tensor, graph";

/// Encode of 1 MiB, kQueuedCalls times in a row; the reference is as many empty kernels.
inline constexpr std::string_view kSmall = "small";
inline constexpr std::string_view kSmallGraph = "small, graph";

/// What a user would do without Tersor.
inline constexpr std::string_view kTwoKernels = "encode (two kernels, plain CUDA)";
inline constexpr std::string_view kCubSort = "encode+feedback (CUB sort)";
inline constexpr std::string_view kCubSelect = "encode+feedback (CUB select)";

inline constexpr std::string_view kDeviceOnlyOperations[] = {
    kTwoKernels, kCubSort, kCubSelect, kMultiTensor, kMultiTensorGraph, kSmall, kSmallGraph};

inline constexpr std::size_t kTensors = 500;
inline constexpr std::size_t kSmallBytes = std::size_t{1} << 20;
inline constexpr std::size_t kQueuedCalls = 200;

/// Values of an operation where `count` are asked for, and `tensor_count` of each of
/// multi-tensor's.
constexpr std::size_t count_of_operation(std::string_view name, Dtype dtype, std::size_t count,
                                         std::size_t tensor_count) {
  if (name.starts_with(kMultiTensor)) return kTensors * tensor_count;
  return name.starts_with(kSmall) ? kSmallBytes / dtype_bytes(dtype) : count;
}

}  // namespace tersor::bench
