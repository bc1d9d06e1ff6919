// Random pauses of streams, and the seed of the runtime's random orders.
#pragma once

#include <cstdint>

namespace ptx {

bool streams_pause();
std::uint64_t order_seed();

}  // namespace ptx
