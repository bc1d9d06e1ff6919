// See messages.h.
#include "tests/ptx_device/nccl/messages.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ptx::nccl {
namespace {

enum class Step { kDone, kProgress, kNothing };

/// Peers with an earlier active message in this pass, as bits.
struct Busy {
  std::uint32_t sends = 0, receives = 0;

  bool take(const Message& message) {
    std::uint32_t& peers = message.way == Way::kSend ? sends : receives;
    const bool was_free = ((peers >> message.peer) & 1) == 0;
    peers |= 1u << message.peer;
    return was_free;
  }
};

Ring& ring_of(const ncclComm& comm, const Message& message) {
  return message.way == Way::kSend ? comm.room->rings[comm.rank][message.peer]
                                   : comm.room->rings[message.peer][comm.rank];
}

/// Copies at position `at` of the ring, around its end.
void copy(Ring& ring, std::uint64_t at, Way way, std::span<char> own) {
  while (!own.empty()) {
    char* const place = ring.bytes + at % kRingBytes;
    const std::size_t piece = std::min<std::size_t>(own.size(), ring.bytes + kRingBytes - place);
    if (way == Way::kSend)
      std::memcpy(place, own.data(), piece);
    else
      std::memcpy(own.data(), place, piece);
    at += piece;
    own = own.subspan(piece);
  }
}

void check_header(const ncclComm& comm, const Message& message) {
  if (message.came == message.header) return;
  std::fprintf(stderr,
               "ptx-nccl: rank %d expects call %#llx of %llu bytes from rank %d, which makes call "
               "%#llx of %llu\n",
               comm.rank, static_cast<unsigned long long>(message.header.call),
               static_cast<unsigned long long>(message.header.bytes), message.peer,
               static_cast<unsigned long long>(message.came.call),
               static_cast<unsigned long long>(message.came.bytes));
  std::abort();
}

/// Moves as much as the ring has space or contents. Returns false if nothing moved.
bool advance(const ncclComm& comm, Message& message) {
  Ring& ring = ring_of(comm, message);
  const bool sends = message.way == Way::kSend;
  const std::uint64_t written = ring.written.load(std::memory_order_acquire);
  const std::uint64_t read = ring.read.load(std::memory_order_acquire);
  const std::size_t room = sends ? kRingBytes - (written - read) : written - read;
  std::span<char> part = message.rest();
  part = part.first(std::min(room, part.size()));
  if (part.empty()) return false;
  const std::uint64_t at = sends ? written : read;
  copy(ring, at, message.way, part);
  message.moved += part.size();
  message.end = at + part.size();
  (sends ? ring.written : ring.read).store(message.end, std::memory_order_release);
  if (!sends && message.moved == sizeof(Header)) check_header(comm, message);
  return true;
}

bool is_done(const ncclComm& comm, Message& message) {
  if (!message.rest().empty()) return false;
  const Ring& ring = ring_of(comm, message);
  return message.way == Way::kReceive || ring.read.load(std::memory_order_acquire) >= message.end;
}

Step pass(const ncclComm& comm, std::vector<Message>& messages) {
  Step step = Step::kDone;
  Busy busy;
  for (Message& message : messages) {
    if (is_done(comm, message)) continue;
    if (step == Step::kDone) step = Step::kNothing;
    if (busy.take(message) && advance(comm, message)) step = Step::kProgress;
  }
  return step;
}

void deliver(Message& send, Message& receive) {
  while (!send.rest().empty()) {
    const std::span<char> from = send.rest();
    std::memmove(receive.rest().data(), from.data(), from.size());
    receive.moved += from.size();
    send.moved += from.size();
  }
}

/// A rank's messages to itself need no ring.
void move_to_oneself(const ncclComm& comm, std::vector<Message>& messages) {
  const auto is_next = [&comm](Message& message, Way way) {
    return message.way == way && message.peer == comm.rank && !message.rest().empty();
  };
  for (Message& send : messages) {
    if (!is_next(send, Way::kSend)) continue;
    const auto receive = std::find_if(messages.begin(), messages.end(), [&](Message& other) {
      return is_next(other, Way::kReceive);
    });
    if (receive == messages.end()) continue;
    receive->came = send.header;
    check_header(comm, *receive);
    deliver(send, *receive);
  }
}

}  // namespace

std::span<char> Message::rest() {
  std::size_t at = moved;
  char* const head = reinterpret_cast<char*>(way == Way::kSend ? &header : &came);
  const std::size_t bytes = header.bytes;
  for (const std::span<char> part :
       {std::span(head, sizeof(Header)), std::span(marks, bytes), std::span(values, bytes)}) {
    if (at < part.size()) return part.subspan(at);
    at -= part.size();
  }
  return {};
}

bool move(const ncclComm& comm, std::vector<Message>& messages) {
  move_to_oneself(comm, messages);
  for (;;) {
    if (comm.is_over()) return false;
    const Step step = pass(comm, messages);
    if (step == Step::kDone) return true;
    if (step == Step::kNothing) rest();
  }
}

}  // namespace ptx::nccl
