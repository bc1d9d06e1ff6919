// The operations of a codec on a device, by name.
#pragma once

#include <memory>
#include <string_view>

#include "bench/device/operation.h"

namespace tersor::bench {

/// Encode, encode with feedback, decode, decode and add, reduce. Null for other names.
std::unique_ptr<DeviceOperation> make_codec_operation(std::string_view name,
                                                      const DeviceInput& input);

}  // namespace tersor::bench
