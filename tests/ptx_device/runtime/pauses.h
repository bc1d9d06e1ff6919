// Random pauses of streams, and the seed of the runtime's random orders. PTX_DEVICE_DELAY and
// PTX_DEVICE_SEED are the defaults; a test may change both.
#pragma once

#include <cstdint>

namespace ptx {

bool streams_pause();
std::uint64_t order_seed();

}  // namespace ptx

extern "C" {

/// Test hook: sets random pauses and the seed for streams and launches created afterwards.
void ptx_device_pauses(int pause, unsigned long long seed);
}
