// See arguments.h.
#include "comm/transport/arguments.h"

#include <tersor/error.h>

#include <algorithm>
#include <functional>

namespace tersor {

void refuse(const Operation& operation, const std::string& why) {
  throw InvalidArgument(std::string(operation.name) + ": " + why);
}

void check_entries(const Operation& operation, std::size_t entries, int ranks) {
  if (entries != static_cast<std::size_t>(ranks))
    refuse(operation,
           std::to_string(entries) + " entries given for " + std::to_string(ranks) + " ranks");
}

void check_members(std::span<const int> members, int rank, int ranks) {
  const bool ascending =
      std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) == members.end();
  if (members.empty() || !ascending || members.front() < 0 || members.back() >= ranks)
    throw InvalidArgument("split: members must be ascending ranks below " + std::to_string(ranks));
  if (!std::binary_search(members.begin(), members.end(), rank))
    throw InvalidArgument("split: rank " + std::to_string(rank) + " is not among the members");
}

}  // namespace tersor
