// Numbers of hosts as Transport::hosts gives them.
#pragma once

#include <span>
#include <vector>

namespace tersor::host {

/// Names of hosts, one a rank, as numbers: counted from 0 in the order of their lowest ranks.
std::vector<int> number_hosts(std::span<const int> names);

}  // namespace tersor::host
