// The names of the operations that only a device has.
#pragma once

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

}  // namespace tersor::bench
