// Launches of kernels.
#pragma once

#include <cstdint>

namespace ptx {

/// The number of the next launch of a kernel or graph; seeds the execution order.
std::uint64_t next_launch();

}  // namespace ptx
