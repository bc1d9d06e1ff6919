// Agreement on the remaining ranks, with a late rank.
#include "comm/reducer/survivors.h"
#include "tests/support/errors.h"

#include <gtest/gtest.h>
#include <tersor/tersor.h>

#include <latch>
#include <string>
#include <vector>

namespace tersor::testing {
namespace {

TEST(Survivors, LateRankIsNotifiedOfExclusion) {
  std::latch agreed(2), over(3);
  run_ranks(3, {}, [&](Transport& transport) {
    Survivors survivors(transport, 0);
    if (transport.rank() < 2) {
      const Survivors::Decision found = survivors.agree(3);
      EXPECT_EQ(found.members, (std::vector<int>{0, 1}));
      EXPECT_EQ(found.lost, std::vector<int>{2});
      agreed.count_down();
    } else {
      agreed.wait();  // the others stop waiting at their time limit
      test::expect_error<TransportError>([&] { survivors.agree(3); },
                                         "rank 2 was left out by rank");
    }
    over.arrive_and_wait();
  });
}

}  // namespace
}  // namespace tersor::testing
