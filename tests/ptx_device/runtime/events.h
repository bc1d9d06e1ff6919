// Events. cudaEvent_t points to an event.
#pragma once

#include <cstddef>

namespace ptx {

/// Number of created and not yet destroyed events.
std::size_t live_events();

}  // namespace ptx
