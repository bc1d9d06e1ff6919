// Memory that the program allocates.
#pragma once

#include <cstddef>

namespace ptx {

/// Allocated by the program, on the device or pinned, and not yet freed.
std::size_t live_allocations();

}  // namespace ptx
