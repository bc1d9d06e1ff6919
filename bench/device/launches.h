// What launching costs: one call for five hundred tensors, and short calls in a queue of many.
#pragma once

#include <memory>
#include <string_view>

#include "bench/codec_operation.h"
#include "bench/device/names.h"

namespace tersor::bench {

/// Whether `name` is one of these.
bool is_launch_operation(std::string_view name);
/// Whether it is, and a codec has it.
bool has_launch_operation(std::string_view name, const PlannedCodec& codec);

std::unique_ptr<CodecOperation> make_launch_operation(std::string_view name,
                                                      const OperationInput& input);

}  // namespace tersor::bench
