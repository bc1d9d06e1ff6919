// Argument checks shared by all transports, with common error texts.
#pragma once

#include <tersor/transport.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace tersor {

/// All ranks: 0, 1, …
std::vector<int> all_ranks(int ranks);

/// Throws InvalidArgumentError with the operation's name.
[[noreturn]] void refuse(const Operation& operation, const std::string& reason);

/// Throws InvalidArgumentError unless there is one entry per rank.
void check_entries(const Operation& operation, std::size_t entries, int ranks);

/// Throws InvalidArgumentError unless `peer` is another rank of the transport.
void check_peer(const Operation& operation, const Transport& transport, int peer);

/// Throws InvalidArgumentError for invalid message lists of an exchange.
void check_messages(const Operation& operation, const Transport& transport,
                    std::span<const SendTo> sends, std::span<const ReceiveFrom> receives);

/// Throws InvalidArgumentError unless a split's members are ascending ranks and include `rank`.
void check_members(std::span<const int> members, int rank, int ranks);

}  // namespace tersor
