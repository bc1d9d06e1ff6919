// Memory of the emulated device: only work that runs on the device can touch it. The host's own
// code that does so ends the program with a line that says which allocation it was.
#pragma once

#include <cstddef>

namespace tersor::emulator {

/// At least 256-byte aligned. Null where there is no room left. Under the lock, as the others here.
std::byte* allocate_in_arena(std::size_t bytes);
void release_in_arena(std::byte* memory);

/// While one lives, all of it can be touched.
class ArenaAccess {
 public:
  ArenaAccess();
  ~ArenaAccess();
  ArenaAccess(const ArenaAccess&) = delete;
  ArenaAccess& operator=(const ArenaAccess&) = delete;
};

}  // namespace tersor::emulator
