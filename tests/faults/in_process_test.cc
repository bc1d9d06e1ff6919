// Ranks as threads, and one of them fails: nobody hangs, nobody gets a wrong sum, everybody is
// told.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/faults/in_process.h"

namespace tersor::faults {
namespace {

constexpr const char* kVariable = "TERSOR_FAULT_SEEDS";  // "17" or "1-1000"
constexpr const char* kSeedsOfCi = "1-50";

std::vector<std::uint64_t> parse_seeds(const std::string& text) {
  const auto dash = text.find('-');
  const std::uint64_t first = std::stoull(text);
  const std::uint64_t last = dash == std::string::npos ? first : std::stoull(text.substr(dash + 1));
  std::vector<std::uint64_t> seeds;
  for (std::uint64_t seed = first; seed <= last; ++seed) seeds.push_back(seed);
  return seeds;
}

std::vector<std::uint64_t> seeds() {
  const char* wanted = std::getenv(kVariable);
  return parse_seeds(wanted == nullptr ? kSeedsOfCi : wanted);
}

class FaultsInProcess : public ::testing::TestWithParam<std::uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Seeds, FaultsInProcess, ::testing::ValuesIn(seeds()),
                         [](const auto& seed) { return std::to_string(seed.param); });

TEST_P(FaultsInProcess, EndInTimeOnAllRanks) {
  const Scenario scenario = draw_scenario(GetParam(), Home::kThreads);
  for (const std::string& complaint : complaints_in_process(scenario))
    ADD_FAILURE() << complaint << "\n"
                  << scenario.text() << "\nrepeat with: " << kVariable << "=" << scenario.seed
                  << " tersor_faults_test";
}

}  // namespace
}  // namespace tersor::faults
