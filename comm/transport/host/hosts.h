// Host numbers as returned by Transport::hosts.
#pragma once

#include <map>
#include <ranges>
#include <vector>

namespace tersor::host {

/// Converts the host names of all ranks to numbers from 0 in the order of each host's lowest rank.
template <typename Names>
std::vector<int> number_hosts(const Names& names) {
  std::map<std::ranges::range_value_t<Names>, int> numbers;
  std::vector<int> hosts;
  for (const auto& name : names)
    hosts.push_back(numbers.try_emplace(name, static_cast<int>(numbers.size())).first->second);
  return hosts;
}

}  // namespace tersor::host
