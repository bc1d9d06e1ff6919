// See seeds.h.

#include "tests/support/seeds.h"

#include <cstdlib>

namespace tersor::test {

std::vector<std::uint64_t> seeds_of(const char* variable, const std::string& otherwise) {
  const char* wanted = std::getenv(variable);
  const std::string text = wanted == nullptr ? otherwise : wanted;
  const auto dash = text.find('-');
  const std::uint64_t first = std::stoull(text);
  const std::uint64_t last = dash == std::string::npos ? first : std::stoull(text.substr(dash + 1));
  std::vector<std::uint64_t> seeds;
  for (std::uint64_t seed = first; seed <= last; ++seed) seeds.push_back(seed);
  return seeds;
}

}  // namespace tersor::test
