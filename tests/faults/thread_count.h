// Whether threads stay behind.
#pragma once

#include <cstddef>

namespace tersor::faults {

/// Threads of this process, as the kernel counts them.
std::ptrdiff_t count_threads();

/// How many more there are than `before`, once those that were joined had the time to go.
std::ptrdiff_t threads_left(std::ptrdiff_t before);

}  // namespace tersor::faults
