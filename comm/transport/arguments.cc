#include "comm/transport/arguments.h"

#include <tersor/error.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace tersor {
namespace {

/// Checks a list of messages; `direction` is "to" or "from" for error texts.
template <typename Message>
void check_peers(const Operation& operation, const Transport& transport,
                 std::span<const Message> messages, const std::string& direction) {
  std::vector<bool> listed;  // allocates nothing for a single message
  if (messages.size() > 1) listed.resize(static_cast<std::size_t>(transport.ranks()));
  for (const Message& message : messages) {
    check_peer(operation, transport, message.peer);
    if (listed.empty()) continue;
    const auto peer = static_cast<std::size_t>(message.peer);
    if (listed[peer])
      refuse(operation, "two messages " + direction + " rank " + std::to_string(peer));
    listed[peer] = true;
  }
}

}  // namespace

std::vector<int> all_ranks(int ranks) {
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void refuse(const Operation& operation, const std::string& reason) {
  throw InvalidArgumentError(std::string(operation.name) + ": " + reason);
}

void check_entries(const Operation& operation, std::size_t entries, int ranks) {
  if (entries != static_cast<std::size_t>(ranks))
    refuse(operation, std::to_string(entries) + " entries for " + std::to_string(ranks) +
                          " ranks: give one per rank");
}

void check_peer(const Operation& operation, const Transport& transport, int peer) {
  if (peer < 0 || peer >= transport.ranks() || peer == transport.rank())
    refuse(operation, "rank " + std::to_string(peer) + " is not a peer of rank " +
                          std::to_string(transport.rank()) + " of " +
                          std::to_string(transport.ranks()));
}

void check_messages(const Operation& operation, const Transport& transport,
                    std::span<const SendTo> sends, std::span<const ReceiveFrom> receives) {
  check_peers(operation, transport, sends, "to");
  if (receives.size() != 1 || receives.front().peer != kAnyRank)
    return check_peers(operation, transport, receives, "from");
  if (!transport.traits().receive_any) refuse(operation, "this transport has no receive_any");
  if (transport.ranks() == 1)
    refuse(operation, "a group of one rank has no other rank to receive from");
}

void check_members(std::span<const int> members, int rank, int ranks) {
  const bool ascending =
      std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) == members.end();
  if (members.empty() || !ascending || members.front() < 0 || members.back() >= ranks)
    throw InvalidArgumentError("split: members must be ascending ranks below " +
                               std::to_string(ranks));
  if (!std::binary_search(members.begin(), members.end(), rank))
    throw InvalidArgumentError("split: rank " + std::to_string(rank) + " is not among the members");
}

}  // namespace tersor
