// Implements what <tersor/transport.h> says of operations that are another one.
#include <tersor/transport.h>

#include "comm/transport/arguments.h"

namespace tersor {
namespace {

Operation called(Operation operation, Calling calling) {
  operation.calling = calling;
  return operation;
}

}  // namespace

// The next rank first, so that not all ranks send to the same one at the same time.
Handle Transport::all_to_all(const Operation& operation, std::span<const ConstByteSpan> sends,
                             std::span<const std::size_t> capacities) {
  check_entries(operation, sends.size(), ranks());
  check_entries(operation, capacities.size(), ranks());
  std::vector<SendTo> to;
  std::vector<ReceiveFrom> from;
  for (int distance = 1; distance < ranks(); ++distance) {
    const int peer = (rank() + distance) % ranks();
    to.push_back({peer, sends[static_cast<std::size_t>(peer)]});
    from.push_back({peer, capacities[static_cast<std::size_t>(peer)]});
  }
  return exchange(called(operation, Calling::kAllToAll), to, from);
}

Handle Transport::send(const Operation& operation, int peer, ConstByteSpan bytes) {
  const SendTo to{peer, bytes};
  return exchange(called(operation, Calling::kSend), {&to, 1}, {});
}

Handle Transport::receive(const Operation& operation, int peer, std::size_t capacity) {
  check_peer(operation, *this, peer);  // not any rank
  const ReceiveFrom from{peer, capacity};
  return exchange(called(operation, Calling::kSend), {}, {&from, 1});
}

Handle Transport::receive_any(const Operation& operation, std::size_t capacity) {
  const ReceiveFrom from{kAnyRank, capacity};
  return exchange(called(operation, Calling::kSend), {}, {&from, 1});
}

Handle Transport::barrier(const Operation& operation) {
  return all_gather(called(operation, Calling::kBarrier), {}, 0);
}

}  // namespace tersor
