// See messages.h.
#include "tests/ptx_device/nccl/messages.h"

#include <algorithm>
#include <cstring>

namespace ptx::nccl {
namespace {

enum class Step { kDone, kProgress, kNothing };

/// Which peers an earlier message of this pass keeps busy, a bit each.
struct Busy {
  std::uint32_t sends = 0, receives = 0;

  bool take(const Message& message) {
    std::uint32_t& peers = message.way == Way::kSend ? sends : receives;
    const bool was_free = ((peers >> message.peer) & 1) == 0;
    peers |= 1u << message.peer;
    return was_free;
  }
};

/// From `at` of the ring, around its end.
void copy(Ring& ring, std::uint64_t at, Message& message, std::size_t bytes) {
  for (std::size_t left = bytes; left != 0;) {
    const std::size_t place = at % kRingBytes;
    const std::size_t piece = std::min(left, kRingBytes - place);
    char* own = message.memory + message.moved;
    if (message.way == Way::kSend) {
      std::memcpy(ring.bytes + place, own, piece);
    } else {
      std::memcpy(own, ring.bytes + place, piece);
    }
    message.moved += piece;
    at += piece;
    left -= piece;
  }
}

/// As much as the ring has room for, or holds. False: none.
bool advance(Ring& ring, Message& message) {
  const bool sends = message.way == Way::kSend;
  const std::uint64_t written = ring.written.load(std::memory_order_acquire);
  const std::uint64_t read = ring.read.load(std::memory_order_acquire);
  const std::size_t room = sends ? kRingBytes - (written - read) : written - read;
  const std::size_t bytes = std::min(room, message.bytes - message.moved);
  if (bytes == 0) return false;
  const std::uint64_t at = sends ? written : read;
  copy(ring, at, message, bytes);
  (sends ? ring.written : ring.read).store(at + bytes, std::memory_order_release);
  return true;
}

Ring& ring_of(const ncclComm& comm, const Message& message) {
  return message.way == Way::kSend ? comm.room->rings[comm.rank][message.peer]
                                   : comm.room->rings[message.peer][comm.rank];
}

Step pass(const ncclComm& comm, std::vector<Message>& messages) {
  Step step = Step::kDone;
  Busy busy;
  for (Message& message : messages) {
    if (message.is_done()) continue;
    if (step == Step::kDone) step = Step::kNothing;
    if (busy.take(message) && advance(ring_of(comm, message), message)) step = Step::kProgress;
  }
  return step;
}

/// A rank's messages to itself need no ring.
void move_to_oneself(int rank, std::vector<Message>& messages) {
  const auto is_next = [rank](const Message& message, Way way) {
    return message.way == way && message.peer == rank && !message.is_done();
  };
  for (Message& send : messages) {
    if (!is_next(send, Way::kSend)) continue;
    const auto receive = std::find_if(messages.begin(), messages.end(), [&](const Message& other) {
      return is_next(other, Way::kReceive);
    });
    if (receive != messages.end()) {
      std::memmove(receive->memory, send.memory, std::min(send.bytes, receive->bytes));
      receive->moved = receive->bytes;
    }
    send.moved = send.bytes;
  }
}

}  // namespace

bool move(const ncclComm& comm, std::vector<Message>& messages) {
  move_to_oneself(comm.rank, messages);
  for (;;) {
    const Step step = pass(comm, messages);
    if (step == Step::kDone) return true;
    if (comm.is_over()) return false;
    if (step == Step::kNothing) rest();
  }
}

}  // namespace ptx::nccl
