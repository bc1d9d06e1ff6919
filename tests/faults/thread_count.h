// Counts threads, to detect leaked threads.
#pragma once

#include <cstddef>

namespace tersor::faults {

/// The number of threads of this process according to the kernel.
std::ptrdiff_t count_threads();

/// The number of additional threads compared with `before`, after a delay for joined threads to
/// exit.
std::ptrdiff_t threads_left(std::ptrdiff_t before);

}  // namespace tersor::faults
