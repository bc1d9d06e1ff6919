// What every transport asks of its arguments, in the same words.
#pragma once

#include <tersor/transport.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace tersor {

/// All ranks: 0, 1, …
std::vector<int> all_ranks(int ranks);

/// Throws InvalidArgument that names the operation.
[[noreturn]] void refuse(const Operation& operation, const std::string& why);

/// Throws InvalidArgument where there is not one entry for each rank.
void check_entries(const Operation& operation, std::size_t entries, int ranks);

/// Throws InvalidArgument where `peer` is not another rank of the transport.
void check_peer(const Operation& operation, const Transport& transport, int peer);

/// Throws InvalidArgument for lists that no exchange may have.
void check_messages(const Operation& operation, const Transport& transport,
                    std::span<const SendTo> sends, std::span<const ReceiveFrom> receives);

/// Throws InvalidArgument where a split's members are not ascending ranks, `rank` among them.
void check_members(std::span<const int> members, int rank, int ranks);

}  // namespace tersor
