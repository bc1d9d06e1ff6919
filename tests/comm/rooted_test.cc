// broadcast, reduce, gather and scatter: the root's data, with the bits of the collectives of all
// ranks.
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>

namespace tersor::testing {
namespace {

constexpr std::size_t kRootedCounts[] = {0, 1, 511, 513, 4099, 70'003};
const std::string kCodecs[] = {"none",
                               "bf16",
                               "int8:rounding=stochastic",
                               "hadamard:bits=4",
                               "topk:density=0.2",
                               "blocktopk:density=0.2"};

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

class Rooted : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
  std::vector<int> roots() const { return {0, ranks() / 2, ranks() - 1}; }
};

TEST_P(Rooted, BroadcastDeliversRootValuesToAllRanks) {
  for (const std::string& codec : kCodecs)
    for (const std::size_t count : kRootedCounts)
      for (const int root : roots()) {
        SCOPED_TRACE(codec + ", " + std::to_string(count) + " of " + std::to_string(root));
        const auto inputs = gradients(ranks(), count);
        const auto outputs = on_ranks(inputs, [&](Transport& transport, Values& values) {
          broadcast(transport, values, root, {.codec = codec, .chunk_count = 10'000});
        });
        for (const Values& output : outputs) ASSERT_EQ(output, outputs.front());
        if (codec == "none" || ranks() == 1) EXPECT_EQ(outputs.front(), inputs[at(root)]);
        const std::vector<double> wanted(inputs[at(root)].begin(), inputs[at(root)].end());
        if (count > 1) EXPECT_LT(squared_error(outputs.front(), wanted), 0.7);
      }
}

// Also with feedback: equal residuals step by step.
TEST_P(Rooted, ReduceAtRootMatchesTwoShotBits) {
  for (const std::string codec : {"none", "int8+ef", "int4:rounding=stochastic+ef", "blocktopk+ef"})
    for (const std::size_t count : kRootedCounts)
      for (const int root : roots()) {
        SCOPED_TRACE(codec + ", " + std::to_string(count) + " at " + std::to_string(root));
        const std::size_t unit = make_codec(codec)->traits().unit;
        std::vector<Values> to_root(at(ranks())), to_all(at(ranks()));
        const auto run = [&](Transport& transport, bool rooted, Values& result) {
          const int rank = transport.rank();
          Values residual(count), owner(owned_count(count, rank, ranks(), 0, unit));
          StateWords words;
          const CollectiveState state{residual, owner, &words};
          const CollectiveOptions options{.codec = codec,
                                          .reduction = Reduction::kMean,
                                          .algorithm = Algorithm::kTwoShot,
                                          .state = codec == "none" ? nullptr : &state,
                                          .chunk_count = 10'000};
          for (std::uint64_t step = 0; step < 3; ++step) {
            Values gradient = gaussian(count, step * 100 + at(rank));
            Values sum(rank == root ? count : 0);
            if (rooted)
              reduce(transport, gradient, sum, root, options);
            else
              allreduce(transport, gradient, options);
            const Values& found = rooted ? sum : gradient;
            if (rank == root) result.insert(result.end(), found.begin(), found.end());
          }
          result.insert(result.end(), residual.begin(), residual.end());
          result.insert(result.end(), owner.begin(), owner.end());
        };
        run_ranks(ranks(), {}, [&](Transport& transport) {
          run(transport, true, to_root[at(transport.rank())]);
          run(transport, false, to_all[at(transport.rank())]);
        });
        EXPECT_EQ(to_root, to_all);
      }
}

// Long f32 inputs of a lossless codec use a chain: each rank adds its values and sends the sum
// towards the root.
TEST_P(Rooted, LongReduceEqualsSumAlongTheChain) {
  constexpr std::size_t kLong = 500'003;
  for (const int root : {0, ranks() / 2}) {
    auto inputs = gradients(ranks(), kLong);
    Values wanted = inputs[at((root + ranks() - 1) % ranks())];
    for (int behind = ranks() - 2; behind >= 0; --behind)
      for (std::size_t i = 0; i < kLong; ++i) wanted[i] += inputs[at((root + behind) % ranks())][i];
    CollectiveStatistics statistics;
    run_ranks(ranks(), {}, [&](Transport& transport) {
      const bool is_root = transport.rank() == root;
      Values& own = inputs[at(transport.rank())];  // in place
      reduce(
          transport, own, is_root ? ValueSpan(own) : ValueSpan(), root,
          {.codec = "none", .chunk_count = 20'000, .statistics = is_root ? &statistics : nullptr});
    });
    if (ranks() > 2) EXPECT_EQ(statistics.algorithm, Algorithm::kOneShot);
    if (ranks() > 2) EXPECT_EQ(inputs[at(root)], wanted);
    EXPECT_LT(squared_error(inputs[at(root)], {wanted.begin(), wanted.end()}), 1e-12);
  }
}

// The mean of finite values is finite, even if their sum overflows.
TEST_P(Rooted, LongMeanDoesNotOverflow) {
  constexpr std::size_t kLong = 500'003;
  Values mean(kLong);
  run_ranks(ranks(), {}, [&](Transport& transport) {
    const Values own(kLong, 2e38f);
    reduce(transport, own, transport.rank() == 0 ? ValueSpan(mean) : ValueSpan(), 0,
           {.codec = "none", .reduction = Reduction::kMean});
  });
  for (const float value : mean) ASSERT_NEAR(value, 2e38f, 1e32f);
}

// Values rounded at every rank and short inputs use two-shot.
TEST(RootedChain, IsUsedOnlyForLongLosslessF32Sums) {
  const auto algorithm = [](std::size_t count, CollectiveOptions options, Dtype dtype) {
    Algorithm found = Algorithm::kAuto;
    run_ranks(4, {}, [&](Transport& transport) {
      const Buffer values(count * sizeof(float)), sum(count * sizeof(float));
      std::ranges::fill(values.span(), std::byte{});
      CollectiveStatistics statistics;
      CollectiveOptions own = options;
      own.statistics = &statistics;
      const bool is_root = transport.rank() == 1;
      const ValueSpan to = sum.values(count, dtype);
      reduce(transport, values.values(count, dtype), is_root ? to : ValueSpan(), 1, own);
      if (is_root) found = statistics.algorithm;
    });
    return found;
  };
  constexpr std::size_t kLong = std::size_t{1} << 19;
  EXPECT_EQ(algorithm(kLong, {.codec = "none"}, Dtype::kF32), Algorithm::kOneShot);
  EXPECT_EQ(algorithm(kLong / 4, {.codec = "none"}, Dtype::kF32), Algorithm::kTwoShot);
  EXPECT_EQ(algorithm(kLong, {.codec = "none"}, Dtype::kBf16), Algorithm::kTwoShot);
  EXPECT_EQ(algorithm(kLong, {.codec = "int8"}, Dtype::kF32), Algorithm::kTwoShot);
  EXPECT_EQ(algorithm(kLong, {.codec = "none", .reduction = Reduction::kMean}, Dtype::kF32),
            Algorithm::kTwoShot);
  EXPECT_EQ(algorithm(kLong, {.codec = "none", .algorithm = Algorithm::kTwoShot}, Dtype::kF32),
            Algorithm::kTwoShot);
  const int dims[] = {2, 2};
  EXPECT_EQ(algorithm(kLong, {.codec = "none", .dims = dims}, Dtype::kF32), Algorithm::kTwoShot);
}

TEST_P(Rooted, GatherMatchesAllgatherOnTheRoot) {
  for (const std::string& codec : kCodecs)
    for (const std::size_t count : kRootedCounts)
      for (const int root : roots())
        run_ranks(ranks(), {}, [&](Transport& transport) {
          const Values shard = gaussian(count, at(transport.rank()));
          Values wanted(count * at(ranks()));
          Values found(transport.rank() == root ? wanted.size() : 0);
          allgather(transport, shard, wanted, {.codec = codec});
          gather(transport, shard, found, root, {.codec = codec});
          if (transport.rank() == root) EXPECT_EQ(found, wanted) << codec << " " << count;
        });
}

TEST_P(Rooted, ScatterDistributesTheRootsValues) {
  for (const std::string& codec : kCodecs)
    for (const std::size_t count : kRootedCounts)
      for (const int root : roots()) {
        const Values all = gaussian(count * at(ranks()), 3);
        run_ranks(ranks(), {}, [&](Transport& transport) {
          Values shard(count);
          const Values input = transport.rank() == root ? all : Values{};
          scatter(transport, input, shard, root, {.codec = codec});
          const auto first = all.begin() + static_cast<std::ptrdiff_t>(count) * transport.rank();
          const Values own(first, first + static_cast<std::ptrdiff_t>(count));
          if (codec == "none" || ranks() == 1) EXPECT_EQ(shard, own);
          if (count > 1)
            EXPECT_LT(squared_error(shard, {own.begin(), own.end()}), 0.7) << codec << " " << count;
        });
      }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Rooted, ::testing::Values(1, 2, 3, 4, 8));

// Short messages use a tree, long messages a chain: either way, each rank sends to few ranks.
TEST(RootedMessages, BroadcastSendsFewMessagesPerRank) {
  for (const std::size_t count : {std::size_t{1000}, std::size_t{1} << 20}) {
    std::uint64_t all = 0;
    std::mutex mutex;
    run_ranks(16, {}, [&](Transport& transport) {
      Values values(count, 1.0f);
      CollectiveStatistics statistics;
      broadcast(transport, values, 3, {.codec = "none", .statistics = &statistics});
      const std::lock_guard lock(mutex);
      all += transport.counters().sent_messages;
      EXPECT_LE(transport.counters().sent_messages, count == 1000 ? 4 : statistics.chunks);
    });
    EXPECT_EQ(all % 15, 0u);
  }
}

TEST(RootedErrors, ReportReasonForInvalidArguments) {
  EXPECT_EQ(refused([](Transport& ranks, Values& values) { broadcast(ranks, values, 2); }),
            "root is 2: give a rank from 0 to 1");
  EXPECT_EQ(refused([](Transport& ranks, Values& values) { broadcast(ranks, values, -1); }),
            "root is -1: give a rank from 0 to 1");
  EXPECT_EQ(
      refused([](Transport& ranks, Values& values) {
        broadcast(ranks, values, 0, {.codec = "int8+ef"});
      }),
      "codec int8+ef asks for error feedback, but broadcast sends values once: leave out +ef");
  EXPECT_NE(refused([](Transport& ranks, Values& values) {
              broadcast(ranks, values, 0, {.codec = "intsum"});
            }).find("supports only allreduce"),
            std::string::npos);
  EXPECT_NE(refused([](Transport& ranks, Values& values) {
              Values output(5);
              gather(ranks, values, output, ranks.rank());
            }).find("the output has 5 values"),
            std::string::npos);
}

TEST(RootedErrors, RootMismatchIsDetected) {
  EXPECT_THROW(run_ranks(2, {},
                         [](Transport& transport) {
                           Values values(1000, 1.0f);
                           reduce(transport, values, values, transport.rank());
                         }),
               TransportError);
}

}  // namespace
}  // namespace tersor::testing
