// Messages between ranks through the rings of their room.
#pragma once

#include "tests/ptx_device/nccl/communicator.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ptx::nccl {

enum class Way { kSend, kReceive };

/// What both ends say of a message: where they differ, so do the ranks' calls.
struct Header {
  std::uint64_t call;
  std::uint64_t bytes;

  bool operator==(const Header&) const = default;
};

struct Message {
  int peer;
  Way way;
  Header header;
  char* values;
  char* marks;  // a byte for each of the values' bytes: 0 where nobody wrote it
  Header came = header;
  std::size_t moved = 0;  // of header, marks and values
  std::uint64_t end = 0;  // of what was moved, in the ring

  /// What is to be moved next, in one piece; empty: nothing.
  std::span<char> rest();
};

/// Moves all messages at once; those between the same two ranks in the same direction keep their
/// order. Nothing travels in advance: a message is sent once it was received. False: stopped or
/// revoked.
bool move(const ncclComm& comm, std::vector<Message>& messages);

}  // namespace ptx::nccl
