// The shared memory of a communicator's processes: a ring of bytes from every rank to every other
// rank, and gathered host data.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ptx::nccl {

constexpr std::size_t kRingBytes = 256 * 1024;
constexpr int kMostRanks = 16;
constexpr std::size_t kMostTold = 192;  // maximum bytes of a rank per gather

/// Bytes from one rank to another: [read, written), modulo kRingBytes.
struct Ring {
  std::atomic<std::uint64_t> written, read;
  char bytes[kRingBytes];
};

/// A rank's data for this gather and the previous gather.
struct Told {
  std::atomic<std::uint64_t> turn;
  char bytes[2][kMostTold];
};

/// Initially zeros from the system.
struct Room {
  std::atomic<int> present;
  Told told[kMostRanks];
  Ring rings[kMostRanks][kMostRanks];  // from, to
};

/// Opens or creates the shared memory `name`. Returns null if the system refuses.
Room* open_room(const char* name);
void close_room(Room* room);
/// Afterwards no other rank can enter.
void unlink_room(const char* name);

/// Pauses in loops waiting for another process.
void rest();

}  // namespace ptx::nccl
