// Unexpected messages between threads take little memory, even if other ranks run ahead.
#include "tests/comm/running_ahead.h"

namespace tersor::testing {
namespace {

TEST(RunningAhead, FastThreadUsesBoundedMemory) {
  run_ranks(3, {}, [](Transport& ranks) { RunningAhead(ranks).expect_bounded(); });
}

}  // namespace
}  // namespace tersor::testing
