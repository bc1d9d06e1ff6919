// Ranks with mismatched calls or stalls: every rank raises an error in time. agreement_test.cc has
// the options that differ.
#include "tests/comm/ranks.h"
#include "tests/support/grid.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <string>
#include <vector>

namespace tersor::testing {
namespace {

void reduce(Transport& transport, std::size_t count, const CollectiveOptions& options) {
  Values gradient = gaussian(count, 1);
  allreduce(transport, gradient, options);
}

TEST(Disagreement, OperationMismatchFailsOnAllRanks) {
  expect_all_fail(2, [](Transport& transport) {
    Values gradient(6000), shard(3000);
    if (transport.rank() == 0) return allreduce(transport, gradient);
    reduce_scatter(transport, gradient, shard);
  });
}

/// A collective with a root, then two allgathers. A rank without receives detects the mismatch in
/// the first allgather, or in the second if the other ranks started the first before the detection.
void rooted_call(Transport& transport, int which, int root, std::size_t count,
                 const CollectiveOptions& options) {
  const auto ranks = static_cast<std::size_t>(transport.ranks());
  Values own(count, 1.0f), all(transport.rank() == root ? count * ranks : 0), sum(count);
  if (which == 0) broadcast(transport, own, root, options);
  if (which == 1) tersor::reduce(transport, own, sum, root, options);
  if (which == 2) gather(transport, own, all, root, options);
  if (which == 3) scatter(transport, all, own, root, options);
  Values shards(count * ranks);
  for (int call = 0; call < 2; ++call) allgather(transport, own, shards, options);
}

// Detection is immediate if a rank receives a message from an unexpected rank. If two ranks wait
// for each other, detection happens at the deadline.
TEST(Disagreement, RootMismatchFailsOnAllRanks) {
  for (int which = 0; which < 4; ++which)
    for (const int ranks : {2, 4})
      for (int failed_rank = 0; failed_rank < ranks; ++failed_rank)
        for (int other = 1; other < ranks; ++other)
          for (const std::size_t count : {std::size_t{100}, std::size_t{70'000}}) {
            if (test::grid_is_small() && (other + failed_rank + which) % 2 != (count == 100))
              continue;
            SCOPED_TRACE(::testing::Message() << "call " << which << ", " << ranks << " ranks, "
                                              << failed_rank << " names " << other);
            const bool silent = which == 2 ? other == failed_rank : which != 1 && failed_rank == 0;
            const std::chrono::milliseconds timeout(silent ? 300 : 20'000);
            const auto call = [&](Transport& transport) {
              rooted_call(transport, which, transport.rank() == failed_rank ? other : 0, count,
                          {.codec = "bf16", .timeout = timeout});
            };
            for (const std::string& message : errors_of(ranks, call)) {
              EXPECT_TRUE(says(message, "other arguments"));
              EXPECT_TRUE(says(message, "rank " + std::to_string(failed_rank)));
            }
          }
}

// The error is raised before any communication, so the rank may try again.
TEST(Disagreement, InvalidRuleOnOneRankDoesNotAffectOthers) {
  run_ranks(2, {}, [](Transport& transport) {
    const ReducerOptions right{.codec = "none", .timeout = std::chrono::seconds(20)};
    if (transport.rank() == 0) {
      EXPECT_THROW(GradientReducer(transport, {.codec = "int9"}), InvalidArgumentError);
      EXPECT_THROW(GradientReducer(transport, {.rules = {{"*", "int9"}}}), InvalidArgumentError);
    }
    std::vector<float> gradient(10, 1.0f);
    GradientReducer reducer(transport, right);
    reducer.add("weight", gradient);
    reducer.ready("weight");
    reducer.wait();
    EXPECT_EQ(gradient, std::vector<float>(10, 1.0f));  // the mean
  });
}

TEST(Disagreement, MissingCallFailsAtTimeoutAndNamesTheRank) {
  std::latch heard(1);
  const auto errors = errors_of(2, [&](Transport& transport) {
    if (transport.rank() == 1) return heard.wait();  // alive, but busy
    try {
      reduce(transport, 5000, {.timeout = std::chrono::milliseconds(200)});
    } catch (...) {
      heard.count_down();
      throw;
    }
  });
  EXPECT_TRUE(says(errors[0], "rank 1"));
  EXPECT_TRUE(says(errors[0], "allreduce"));
  EXPECT_EQ(errors[1], "");
}

TEST(Disagreement, InvalidCodecOrAlgorithmLeavesTransportUsable) {
  run_ranks(2, {}, [](Transport& transport) {
    Values gradient(100, 2.0f);
    EXPECT_THROW(allreduce(transport, gradient, {.codec = "int9"}), InvalidArgumentError);
    EXPECT_THROW(allreduce(transport, gradient, {.codec = "int8", .algorithm = Algorithm::kNative}),
                 InvalidArgumentError);
    allreduce(transport, gradient, {.codec = "none"});  // the transport still works
    EXPECT_EQ(gradient.front(), 4.0f);
  });
}

}  // namespace
}  // namespace tersor::testing
