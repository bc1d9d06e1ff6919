// Collectives with a workspace allocate no buffers in steady state. A buffer is an allocation
// growing with the count.
#include "tests/comm/ranks.h"
#include "tests/support/allocations.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

namespace tersor::testing {
namespace {

// Large allocations of all ranks during `steps` calls, after warm-up calls.
template <typename Call>
std::size_t count_allocations(Transport& transport, const Call& call) {
  const auto meet = [&] {
    transport.barrier({.name = "barrier", .tag = transport.reserve_tags(1)}).wait_synchronize();
  };
  for (int i = 0; i < 8; ++i) call();
  meet();
  const std::size_t before = test::large_allocations();
  meet();
  for (int i = 0; i < 10; ++i) call();
  meet();
  const std::size_t after = test::large_allocations();
  meet();
  return after - before;
}

class SteadyState : public ::testing::TestWithParam<std::string> {};

TEST_P(SteadyState, AllreduceAllocatesNoBuffer) {
  if (test::allocations() == 0) GTEST_SKIP() << "allocations are the sanitizer's";
  run_ranks(3, {}, [](Transport& transport) {
    Values gradient = gaussian(200000, 1);
    CollectiveWorkspace workspace;
    const CollectiveOptions options{
        .codec = GetParam(), .chunk_count = 1 << 16, .workspace = &workspace};
    const std::size_t found =
        count_allocations(transport, [&] { allreduce(transport, gradient, options); });
    EXPECT_EQ(found, 0u) << "in 10 calls on 3 ranks";
  });
}

// The splits differ in each call.
TEST_P(SteadyState, AllToAllAllocatesNoBuffer) {
  if (test::allocations() == 0) GTEST_SKIP() << "allocations are the sanitizer's";
  run_ranks(3, {}, [](Transport& transport) {
    constexpr std::size_t kColumns = 4096, kRows = 12;
    const Values input = gaussian(kRows * kColumns, 1);
    Values output(input.size());
    CollectiveWorkspace workspace;
    std::size_t iteration = 0;
    const auto call = [&] {  // rank r sends to rank p as many rows as p sends to r
      std::vector<std::size_t> rows(3, 4);
      const auto rank = static_cast<std::size_t>(transport.rank());
      const std::size_t more = iteration++ % 4;
      if (rank < 2) {
        rows[1 - rank] += more;
        rows[rank] -= more;
      }
      all_to_all(transport, input, output, kColumns, {.sent = rows, .received = rows},
                 {.codec = GetParam(), .workspace = &workspace});
    };
    EXPECT_EQ(count_allocations(transport, call), 0u) << "in 10 calls on 3 ranks";
  });
}

INSTANTIATE_TEST_SUITE_P(Codecs, SteadyState,
                         ::testing::Values("none", "bf16", "int8", "int4", "topk"));

}  // namespace
}  // namespace tersor::testing
