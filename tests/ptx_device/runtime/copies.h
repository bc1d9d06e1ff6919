// Host side of memory copies and fills.
#pragma once

#include <cstddef>

namespace ptx {

enum class CopySide { kPageable, kPinned, kDevice, kBad };

/// The location of memory. `bad` means device memory not contained in a single allocation.
CopySide place_of(const void* pointer, std::size_t bytes);

}  // namespace ptx
