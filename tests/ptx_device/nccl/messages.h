// Messages between ranks through the rings of their room.
#pragma once

#include "tests/ptx_device/nccl/communicator.h"

#include <cstddef>
#include <vector>

namespace ptx::nccl {

enum class Way { kSend, kReceive };

struct Message {
  int peer;
  Way way;
  char* memory;
  std::size_t bytes;
  std::size_t moved = 0;

  bool is_done() const { return moved == bytes; }
};

/// Moves all messages at once; those between the same two ranks in the same direction keep their
/// order. False: stopped or revoked.
bool move(const ncclComm& comm, std::vector<Message>& messages);

}  // namespace ptx::nccl
