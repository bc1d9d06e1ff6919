// Ranks with mismatched calls, exceptions, early exits or stalls: every rank raises an error in
// time.
#include "tests/comm/ranks.h"
#include "tests/support/grid.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <string>
#include <vector>

namespace tersor::testing {
namespace {

using Call = std::function<void(Transport&)>;

// The number of ranks with a TransportError. Stores their texts in `messages`.
int failures(int ranks, const Call& call, std::vector<std::string>* messages = nullptr) {
  std::mutex mutex;
  int failed = 0;
  run_ranks(ranks, {}, [&](Transport& transport) {
    try {
      call(transport);
    } catch (const TransportError& error) {
      const std::lock_guard lock(mutex);
      ++failed;
      if (messages != nullptr) messages->push_back(error.what());
    }
  });
  return failed;
}

void reduce(Transport& transport, std::size_t count, const CollectiveOptions& options) {
  Values gradient = gaussian(count, 1);
  allreduce(transport, gradient, options);
}

TEST(Disagreement, OnTheCodecEndsOnAllRanks) {
  for (const int odd : {0, 2, 3})
    EXPECT_EQ(failures(4,
                       [&](Transport& transport) {
                         reduce(transport, 70000,
                                {.codec = transport.rank() == odd ? "int4" : "int8"});
                       }),
              4);
}

TEST(Disagreement, OnTheCountEndsOnAllRanks) {
  EXPECT_EQ(failures(3,
                     [](Transport& transport) {
                       reduce(transport, transport.rank() == 1 ? 70001u : 70000u, {});
                     }),
            3);
}

TEST(Disagreement, OnTheDtypeEndsOnAllRanks) {
  EXPECT_EQ(failures(2,
                     [](Transport& transport) {
                       if (transport.rank() == 1) return reduce(transport, 5000, {});
                       std::vector<Bf16> gradient(5000);
                       allreduce(transport, gradient);
                     }),
            2);
}

TEST(Disagreement, OnTheReductionEndsOnAllRanks) {
  EXPECT_EQ(
      failures(2,
               [](Transport& transport) {
                 reduce(transport, 5000,
                        {.codec = "int8",
                         .reduction = transport.rank() == 0 ? Reduction::kSum : Reduction::kMean});
               }),
      2);
}

TEST(Disagreement, OnTheOperationEndsOnAllRanks) {
  EXPECT_EQ(failures(2,
                     [](Transport& transport) {
                       Values gradient(6000), shard(3000);
                       if (transport.rank() == 0) return allreduce(transport, gradient);
                       reduce_scatter(transport, gradient, shard);
                     }),
            2);
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
TEST(Disagreement, OnTheRootEndsOnAllRanks) {
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
            std::vector<std::string> messages;
            const auto call = [&](Transport& transport) {
              rooted_call(transport, which, transport.rank() == failed_rank ? other : 0, count,
                          {.codec = "bf16", .timeout = timeout});
            };
            EXPECT_EQ(failures(ranks, call, &messages), ranks);
            for (const std::string& message : messages) {
              EXPECT_NE(message.find("other arguments"), std::string::npos) << message;
              EXPECT_NE(message.find("rank " + std::to_string(failed_rank)), std::string::npos)
                  << message;
            }
          }
}

// The error is raised before any communication, so the rank may try again.
TEST(Disagreement, AWrongRuleOnOneRankCostsTheOthersNothing) {
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

TEST(Disagreement, OnOneRankOnlyCallingEndsAtTheDeadlineNamingTheOther) {
  std::vector<std::string> messages;
  std::latch heard(1);
  EXPECT_EQ(failures(
                2,
                [&](Transport& transport) {
                  if (transport.rank() == 1) return heard.wait();  // alive, but busy
                  try {
                    reduce(transport, 5000, {.timeout = std::chrono::milliseconds(200)});
                  } catch (...) {
                    heard.count_down();
                    throw;
                  }
                },
                &messages),
            1);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_NE(messages[0].find("rank 1"), std::string::npos) << messages[0];
  EXPECT_NE(messages[0].find("allreduce"), std::string::npos) << messages[0];
}

TEST(Disagreement, ARankThatThrowsEndsTheOthersAndItsErrorComesOut) {
  std::atomic<int> others = 0;
  try {
    run_ranks(4, {}, [&](Transport& transport) {
      if (transport.rank() == 2) throw std::logic_error("out of cheese");
      try {
        reduce(transport, 70000, {.codec = "int8"});
      } catch (const TransportError& error) {
        EXPECT_NE(std::string(error.what()).find("cheese"), std::string::npos) << error.what();
        ++others;
        throw;
      }
    });
    FAIL();
  } catch (const std::logic_error& error) {
    EXPECT_STREQ(error.what(), "out of cheese");
  }
  EXPECT_EQ(others, 3);
}

TEST(Disagreement, APoisonedTransportSaysSoAtOnce) {
  run_ranks(2, {}, [](Transport& transport) {
    const std::string codec = transport.rank() == 0 ? "int8" : "int4";
    EXPECT_THROW(reduce(transport, 5000, {.codec = codec}), TransportError);
    EXPECT_THROW(reduce(transport, 5000, {}), TransportError);
  });
}

TEST(Disagreement, AWrongCodecIsAnErrorBeforeAnythingIsSent) {
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
