// Implements the operations of <tersor/transport.h> built on other operations.
#include <tersor/error.h>
#include <tersor/network.h>
#include <tersor/transport.h>

#include "comm/transport/arguments.h"

namespace tersor {

Block Transport::block(std::size_t) { return {}; }

std::unique_ptr<Transport> Transport::isolated_channel() {
  throw InvalidArgumentError(
      "isolated_channel: MPI and NCCL do not report the loss of a rank; use "
      "make_tcp_transport");
}

// Starts with the next rank, to spread the load over the ranks.
Handle Transport::all_to_all(Operation operation, std::span<const ConstByteSpan> sends,
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
  operation.calling = Calling::kAllToAll;
  return exchange(operation, to, from);
}

Handle Transport::send(Operation operation, int peer, ConstByteSpan bytes) {
  const SendTo to{peer, bytes};
  operation.calling = Calling::kSend;
  return exchange(operation, {&to, 1}, {});
}

Handle Transport::receive(Operation operation, int peer, std::size_t capacity) {
  check_peer(operation, *this, peer);  // refuses kAnyRank
  const ReceiveFrom from{peer, capacity};
  operation.calling = Calling::kSend;
  return exchange(operation, {}, {&from, 1});
}

Handle Transport::receive_any(Operation operation, std::size_t capacity) {
  const ReceiveFrom from{kAnyRank, capacity};
  operation.calling = Calling::kSend;
  return exchange(operation, {}, {&from, 1});
}

Handle Transport::barrier(Operation operation) {
  operation.calling = Calling::kBarrier;
  return all_gather(operation, {}, 0);
}

}  // namespace tersor
