// The GradientReducer with sharded parameters and the hierarchical algorithm. Bits and states are
// tested in scattering_reducer_test.cc and scattering_state_test.cc.
#include "tests/comm/scattering.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <string>

namespace tersor::testing {
namespace {

// The transport provides the hosts. Hosts with unequal numbers of ranks use the direct algorithm.
TEST(ScatteringByHosts, ReportsAlgorithmInStatisticsAndExplain) {
  for (const int ranks : {3, 4})
    run_ranks(ranks, parse_link("none,per_host=2"), [ranks](Transport& transport) {
      GradientReducer reducer(transport, {.codec = "int8", .algorithm = Algorithm::kHierarchical});
      reducer.add("w", {.count = 12000, .rows = 120, .collective = Collective::kReduceScatter});
      Values gradient(12000, 1.0f), shard(12000 / static_cast<std::size_t>(ranks));
      reducer.ready("w", gradient, shard);
      reducer.wait();
      for (const float value : shard) ASSERT_NEAR(value, 1.0f, 0.01f);
      const Algorithm tested = ranks == 4 ? Algorithm::kHierarchical : Algorithm::kTwoShot;
      EXPECT_EQ(reducer.parameter_statistics().front().algorithm, tested);
      const std::string said =
          ranks == 4 ? ", reduce-scatter, hierarchical\n" : ", reduce-scatter\n";
      EXPECT_NE(reducer.explain().find(said), std::string::npos) << reducer.explain();
    });
}

TEST(ScatteringByHosts, RankMayContributeNothing) {
  run_ranks(4, {}, [](Transport& transport) {
    Model model(transport, options_of("int8", {4, {0, 0, 1, 1}}));
    const Values all = model.step(0);
    const Values without = model.step(0, transport.rank() == 3 ? 2 : -1);
    Model alone(transport, options_of("none", {4}));
    const Values wanted = alone.step(0, transport.rank() == 3 ? 2 : -1);
    ASSERT_NE(all, without);
    EXPECT_LE(squared_error(without, {wanted.begin(), wanted.end()}), 3e-4);
  });
}

TEST(ScatteringByHosts, UnevenHostsAreRejected) {
  run_ranks(3, {}, [](Transport& transport) {
    GradientReducer reducer(transport, {.algorithm = Algorithm::kHierarchical, .hosts = {0, 0, 1}});
    expect_error<InvalidArgumentError>(
        [&] { reducer.add("w", {.count = 90, .collective = Collective::kReduceScatter}); },
        "but the hosts have 2, 1");
  });
}

}  // namespace
}  // namespace tersor::testing
