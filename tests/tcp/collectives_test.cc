// Collectives over TCP end with the bits that they have between threads.
#include <gtest/gtest.h>
#include <tersor/tersor.h>

#include <vector>

#include "tests/comm/every_collective.h"
#include "tests/comm/random_options.h"
#include "tests/comm/running_ahead.h"
#include "tests/support/grid.h"
#include "tests/tcp/meeting.h"
#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

using testing::every_collective;
using testing::gradients;
using testing::Values;

TEST(TcpCollectives, AllCollectivesMatchThreads) {
  for (const int ranks : {2, 3, 4})
    for (const char* codec : {"none", "int8:rounding=stochastic", "blocktopk"}) {
      const auto inputs = gradients(ranks, 100'001);
      const auto wanted = testing::on_ranks(inputs, [&](Transport& threads, Values& values) {
        values = every_collective(threads, values, codec);
      });
      std::vector<Values> found(inputs.size());
      run_ranks(tcp_transports(ranks), [&](Transport& transport) {
        const auto own = static_cast<std::size_t>(transport.rank());
        found[own] = every_collective(transport, inputs[own], codec);
      });
      EXPECT_EQ(found, wanted) << codec << " on " << ranks;
    }
}

TEST(TcpCollectives, AllRanksReportRandomOptionMismatches) {
  testing::expect_random_pairs_named(grid_is_small() ? 200 : 1000,
                                     [](const auto& body) { run_ranks(tcp_transports(3), body); });
}

TEST(TcpCollectives, RankThatRunsAheadUsesBoundedMemory) {
  run_ranks(tcp_transports(3),
            [](Transport& ranks) { testing::RunningAhead(ranks).expect_bounded(); });
}

}  // namespace
}  // namespace tersor::test
