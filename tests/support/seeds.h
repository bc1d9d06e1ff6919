// Seeds of tests that draw what they do: a few by default, any others from the environment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tersor::test {

/// The seeds that an environment variable names, "17" or "1-1000"; `otherwise` where it is not set.
std::vector<std::uint64_t> seeds_of(const char* variable, const std::string& otherwise);

}  // namespace tersor::test
