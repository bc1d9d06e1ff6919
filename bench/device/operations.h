// Operations for devices only. Launch operations measure a call for five hundred tensors, and short
// calls in a long queue. Other operations are alternatives without Tersor, with names that say
// this.
#pragma once

#include <memory>
#include <string_view>

#include "bench/codec_operation.h"
#include "bench/device/names.h"

namespace tersor::bench {

/// True if `name` is a launch operation supported by the codec.
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
