// Memory allocated by the program.
#pragma once

#include <cstddef>

namespace ptx {

/// Number of live device and pinned allocations of the program.
std::size_t live_allocations();

}  // namespace ptx
