// Seeds for randomized tests: a few by default, others from the environment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tersor::test {

/// Parses seeds such as "17" or "1-1000" from an environment variable, or from `otherwise` if the
/// variable is unset.
std::vector<std::uint64_t> seeds_of(const char* variable, const std::string& otherwise);

}  // namespace tersor::test
