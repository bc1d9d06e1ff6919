// Faults on threads: a rank fails. No rank hangs or gets a wrong sum, and every rank raises an
// error.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/faults/in_process.h"
#include "tests/support/seeds.h"

namespace tersor::faults {
namespace {

constexpr const char* kVariable = "TERSOR_FAULT_SEEDS";  // "17" or "1-1000"
constexpr const char* kSeeds = "1-50";

class FaultsInProcess : public ::testing::TestWithParam<std::uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Seeds, FaultsInProcess,
                         ::testing::ValuesIn(test::seeds_of(kVariable, kSeeds)),
                         [](const auto& seed) { return std::to_string(seed.param); });

TEST_P(FaultsInProcess, AllRanksEndInTime) {
  const Scenario scenario = draw_scenario(GetParam(), Home::kThreads);
  for (const std::string& complaint : complaints_in_process(scenario, world_of_threads))
    ADD_FAILURE() << complaint << "\n"
                  << scenario.text() << "\nrepeat with: " << kVariable << "=" << scenario.seed
                  << " tersor_faults_test";
}

TEST_P(FaultsInProcess, ElasticReducersContinue) {
  const ElasticPlan plan = draw_elastic_plan(GetParam(), Home::kThreads);
  for (const std::string& complaint :
       complaints_in_process(plan, [&] { return elastic_world(plan); }))
    ADD_FAILURE() << complaint << "\n"
                  << plan.text() << "\nrepeat with: " << kVariable << "=" << plan.seed
                  << " tersor_faults_test";
}

template <typename Plan>
void expect_sound_in_process(const Plan& plan) {
  for (const std::string& complaint :
       complaints_in_process(plan, world_of_threads(Scenario{.ranks = plan.ranks})))
    ADD_FAILURE() << complaint << "\n"
                  << plan.text() << "\nrepeat with: " << kVariable << "=" << plan.seed
                  << " tersor_faults_test";
}

TEST_P(FaultsInProcess, ParameterServersContinue) {
  expect_sound_in_process(draw_served_plan(GetParam()));
}
TEST_P(FaultsInProcess, GossipContinues) { expect_sound_in_process(draw_gossip_plan(GetParam())); }

}  // namespace
}  // namespace tersor::faults
