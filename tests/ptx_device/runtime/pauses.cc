// See pauses.h.
#include "tests/ptx_device/runtime/pauses.h"

#include "tests/ptx_device/hooks.h"
#include "tests/ptx_device/settings.h"

#include <atomic>

namespace ptx {
namespace {

struct Chosen {
  std::atomic<bool> pause{settings().delay};
  std::atomic<std::uint64_t> seed{settings().seed};
};
Chosen& chosen() {
  static auto* chosen = new Chosen;
  return *chosen;
}

}  // namespace

bool streams_pause() { return chosen().pause; }
std::uint64_t order_seed() { return chosen().seed; }

}  // namespace ptx

void ptx_device_pauses(int pause, unsigned long long seed) {
  ptx::chosen().pause = pause != 0;
  ptx::chosen().seed = seed;
}
