// Memory of the emulated device, accessible only from work on the device. An access by host code
// ends the program with a message.
#pragma once

#include <cstddef>

namespace tersor::emulator {

/// Returns memory aligned to at least 256 bytes, or null if the arena is full. All functions here
/// require the lock.
std::byte* allocate_in_arena(std::size_t bytes);
void release_in_arena(std::byte* memory);

/// Makes all memory accessible while this object lives.
class ArenaAccess {
 public:
  ArenaAccess();
  ~ArenaAccess();
  ArenaAccess(const ArenaAccess&) = delete;
  ArenaAccess& operator=(const ArenaAccess&) = delete;
};

}  // namespace tersor::emulator
