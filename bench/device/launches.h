// What launching costs: one call for five hundred tensors, and short calls in a queue of many.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "bench/device/names.h"
#include "bench/device/operation.h"

namespace tersor::bench {

inline constexpr std::size_t kTensors = 500;
inline constexpr std::size_t kSmallBytes = std::size_t{1} << 20;
inline constexpr std::size_t kQueuedCalls = 200;

/// Whether `name` is one of these; their count is not the caller's.
bool is_launch_operation(std::string_view name);
/// `tensor_count`: values of each of multi-tensor's tensors.
std::size_t launch_operation_count(std::string_view name, Dtype dtype, std::size_t tensor_count);

std::unique_ptr<DeviceOperation> make_launch_operation(std::string_view name,
                                                       const DeviceInput& input);

}  // namespace tersor::bench
