// Operations that only a device has: what launching costs (one call for five hundred tensors, and
// short calls in a queue of many), and what a user would do without Tersor, timed beside it under
// names that say so.
#pragma once

#include <memory>
#include <string_view>

#include "bench/codec_operation.h"
#include "bench/device/names.h"

namespace tersor::bench {

/// Whether `name` is one of launching, and a codec has it.
bool has_launch_operation(std::string_view name, const PlannedCodec& codec);
/// Null for other names.
std::unique_ptr<CodecOperation> make_launch_operation(std::string_view name,
                                                      const OperationInput& input);

/// Whether `name` is one without Tersor, and does what the codec does: int8 to nearest, or top-k of
/// f32 values.
bool has_operation_without_us(std::string_view name, const PlannedCodec& codec);
/// What it sends must be as near to the gradient as what the codec sends. Throws InvalidArgument
/// for other names.
std::unique_ptr<CodecOperation> make_operation_without_us(std::string_view name,
                                                          const OperationInput& input);

}  // namespace tersor::bench
