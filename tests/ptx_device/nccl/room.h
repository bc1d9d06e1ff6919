// Where ranks meet: shared memory of their processes, which holds a ring of bytes from every rank
// to every other, and what ranks tell each other on the host.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ptx::nccl {

constexpr std::size_t kRingBytes = 256 * 1024;
constexpr int kMostRanks = 16;
constexpr std::size_t kMostTold = 192;  // bytes a rank can tell at once

/// Bytes from one rank to another; those in [read, written), modulo kRingBytes.
struct Ring {
  std::atomic<std::uint64_t> written, read;
  char bytes[kRingBytes];
};

/// What a rank told at this turn and the one before.
struct Told {
  std::atomic<std::uint64_t> turn;
  char bytes[2][kMostTold];
};

/// Zeros at first, as the system makes it.
struct Room {
  std::atomic<int> present;
  Told told[kMostRanks];
  Ring rings[kMostRanks][kMostRanks];  // from, to
};

/// Opens the room `name`, or makes it; null: the system refuses.
Room* open_room(const char* name);
void close_room(Room* room);
/// Nobody else can enter from then on.
void unlink_room(const char* name);

/// For loops that wait for another process.
void rest();

}  // namespace ptx::nccl
