// What a user would do without Tersor, timed beside it under names that say so.
#pragma once

#include <memory>
#include <string_view>

#include "bench/device/names.h"
#include "bench/device/operation.h"

namespace tersor::bench {

/// Whether `name` is one of these.
bool is_without_us(std::string_view name);

/// Whether one of these does what the codec does: int8 to nearest, or top-k of f32 values.
bool has_operation_without_us(std::string_view name, const PlannedCodec& codec);

/// What it sends must be as near to the gradient as what the codec sends.
std::unique_ptr<DeviceOperation> make_operation_without_us(std::string_view name,
                                                           const DeviceInput& input);

}  // namespace tersor::bench
