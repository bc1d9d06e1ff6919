// Operations for devices only: their names, and the counts of their values.
#pragma once

#include <tersor/dtype.h>

#include <cstddef>
#include <memory>
#include <string_view>

#include "bench/micro/codec_operation.h"

namespace tersor::bench {

/// Encode of kTensors gradients in a single call. The reference is a flat gradient with as many
/// values. A graph does the host's part of each call once, before timing.
inline constexpr std::string_view kMultiTensor = "multi_tensor";
inline constexpr std::string_view kMultiTensorGraph = "multi_tensor_graph";

/// Encode of 1 MiB, kQueuedCalls times in a row. The reference is as many empty kernels.
inline constexpr std::string_view kSmall = "small";
inline constexpr std::string_view kSmallGraph = "small_graph";

/// The alternatives without Tersor.
inline constexpr std::string_view kTwoKernels = "encode_two_kernels";
inline constexpr std::string_view kCubSort = "encode_feedback_cub_sort";
inline constexpr std::string_view kCubSelect = "encode_feedback_cub_select";

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

// The functions below exist only in builds with CUDA.

/// True if `name` is a launch operation supported by the codec: a call for kTensors tensors, or
/// short calls in a long queue.
bool has_launch_operation(std::string_view name, const PlannedCodec& codec);
/// Returns null for other names.
std::unique_ptr<CodecOperation> make_launch_operation(std::string_view name,
                                                      const OperationInput& input);

/// True if `name` is an alternative without Tersor to this codec: int8 with rounding to nearest, or
/// top-k of f32 values.
bool has_operation_without_us(std::string_view name, const PlannedCodec& codec);
/// Makes an alternative. Its error must be as small as the codec's error. Throws
/// InvalidArgumentError for other names.
std::unique_ptr<CodecOperation> make_operation_without_us(std::string_view name,
                                                          const OperationInput& input);

}  // namespace tersor::bench
