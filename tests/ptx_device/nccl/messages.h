// Messages between ranks through rings in shared memory.
#pragma once

#include "tests/ptx_device/nccl/communicator.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ptx::nccl {

enum class Way { kSend, kReceive };

/// Both sides of a message send a header. Different headers mean mismatched calls.
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
  char* marks;  // a mark per byte of the values, 0 if never written
  Header came = header;
  std::size_t moved = 0;  // bytes of header, marks and values
  std::uint64_t end = 0;  // position in the ring after the moved bytes

  /// The next contiguous piece to move, or empty.
  std::span<char> rest();
};

/// Moves all messages concurrently. Messages between the same two ranks in the same direction keep
/// their order. A send completes only after the receive. Returns false if stopped or revoked.
bool move(const ncclComm& comm, std::vector<Message>& messages);

}  // namespace ptx::nccl
