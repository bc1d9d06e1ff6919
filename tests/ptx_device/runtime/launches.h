// Launches of kernels.
#pragma once

#include <cstdint>

namespace ptx {

/// What a launch, of a kernel or of a graph, draws its order from.
std::uint64_t next_launch();

}  // namespace ptx
