// Between threads what a rank has not asked for takes little memory, whatever the others do.
#include "tests/comm/running_ahead.h"

namespace tersor::testing {
namespace {

TEST(RunningAhead, TakesLittleMemoryOfOtherThreads) {
  run_ranks(3, {}, [](Transport& ranks) { RunningAhead(ranks).expect_bounded(); });
}

}  // namespace
}  // namespace tersor::testing
