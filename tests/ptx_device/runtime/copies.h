// Copies and fills of memory, on the host's side.
#pragma once

#include <cstddef>

namespace ptx {

enum class CopySide { kPageable, kPinned, kDevice, kBad };

/// Where memory lies; bad: on the device, but in no allocation as a whole.
CopySide place_of(const void* pointer, std::size_t bytes);

}  // namespace ptx
