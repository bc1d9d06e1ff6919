// Whether streams pause at random, and what the orders are drawn from that the runtime chooses: as
// PTX_DEVICE_DELAY and PTX_DEVICE_SEED say, until a test says otherwise.
#pragma once

#include <cstdint>

namespace ptx {

bool streams_pause();
std::uint64_t order_seed();

}  // namespace ptx

extern "C" {

/// For tests: whether streams pause at random from now on, and what orders are drawn from: those of
/// streams and launches that are made later.
void ptx_device_pauses(int pause, unsigned long long seed);
}
