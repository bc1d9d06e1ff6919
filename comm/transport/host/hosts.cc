// Implements hosts.h, and what a network says that knows nothing of hosts.
#include "comm/transport/host/hosts.h"

#include <map>
#include <numeric>

#include "comm/transport/host/postman.h"

namespace tersor::host {

std::vector<int> number_hosts(std::span<const int> names) {
  std::map<int, int> numbers;
  std::vector<int> hosts;
  for (const int name : names)
    hosts.push_back(numbers.try_emplace(name, static_cast<int>(numbers.size())).first->second);
  return hosts;
}

std::vector<int> Postman::hosts() const {
  std::vector<int> hosts(static_cast<std::size_t>(ranks()));
  std::iota(hosts.begin(), hosts.end(), 0);
  return hosts;
}

}  // namespace tersor::host
