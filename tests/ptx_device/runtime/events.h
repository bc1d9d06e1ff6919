// Events; cudaEvent_t points to one.
#pragma once

#include <cstddef>

namespace ptx {

/// Made and not yet destroyed.
std::size_t live_events();

}  // namespace ptx
