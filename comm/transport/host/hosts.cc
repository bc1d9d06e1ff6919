// Implements hosts.h.
#include "comm/transport/host/hosts.h"

#include <map>

namespace tersor::host {

std::vector<int> number_hosts(std::span<const int> names) {
  std::map<int, int> numbers;
  std::vector<int> hosts;
  for (const int name : names)
    hosts.push_back(numbers.try_emplace(name, static_cast<int>(numbers.size())).first->second);
  return hosts;
}

}  // namespace tersor::host
