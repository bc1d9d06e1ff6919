// reduce_scatter and allgather with the hierarchical algorithm and on grids: results near the sum,
// no lost values, and an allgather with the bits of the direct algorithm.
#include "comm/collectives/hosts.h"
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>
#include <tuple>

namespace tersor::testing {
namespace {

// 2 x 2, 2 x 4, 3 x 2, 4 x 2 and 2 x 3 hosts and ranks: consecutive, interleaved, ascending and
// descending.
const Hosts kShardHosts[] = {
    {0, 0, 1, 1},       {0, 1, 1, 0},       {0, 0, 0, 0, 1, 1, 1, 1}, {1, 0, 1, 0, 1, 0, 1, 0},
    {0, 0, 1, 1, 2, 2}, {0, 1, 2, 2, 1, 0}, {0, 0, 1, 1, 2, 2, 3, 3}, {7, -3, 5, 4, 7, -3, 5, 4},
    {0, 0, 0, 1, 1, 1}, {0, 1, 0, 1, 1, 0},
};

CollectiveOptions by_hosts(const std::string& codec, const Hosts& hosts,
                           CollectiveOptions options = {}) {
  options.codec = codec;
  options.algorithm = Algorithm::kHierarchical;
  options.hosts = hosts;
  return options;
}

/// The concatenated shards after reduce_scatter.
Values scatter(const std::vector<Values>& inputs, const CollectiveOptions& options) {
  const std::size_t count = inputs.front().size() / inputs.size();
  std::vector<Values> shards(inputs.size(), Values(count, -1.0f));
  run_ranks(static_cast<int>(inputs.size()), {}, [&](Transport& transport) {
    const auto rank = static_cast<std::size_t>(transport.rank());
    reduce_scatter(transport, inputs[rank], shards[rank], options);
  });
  Values all;
  for (const Values& shard : shards) all.insert(all.end(), shard.begin(), shard.end());
  return all;
}

/// The output of allgather on each rank.
std::vector<Values> gather(const std::vector<Values>& inputs, const CollectiveOptions& options) {
  const std::size_t count = inputs.front().size() * inputs.size();
  std::vector<Values> outputs(inputs.size(), Values(count, -1.0f));
  run_ranks(static_cast<int>(inputs.size()), {}, [&](Transport& transport) {
    const auto rank = static_cast<std::size_t>(transport.rank());
    allgather(transport, inputs[rank], outputs[rank], options);
  });
  return outputs;
}

class ShardsByHosts : public ::testing::TestWithParam<std::tuple<std::string, Hosts>> {
 protected:
  static const std::string& codec() { return std::get<0>(GetParam()); }
  static const Hosts& hosts() { return std::get<1>(GetParam()); }
  static CollectiveOptions options(const CollectiveOptions& others = {}) {
    return by_hosts(codec(), hosts(), others);
  }
  /// Inputs of `count` values per rank and shard.
  static std::vector<Values> inputs(std::size_t count) {
    return gradients(ranks_of(hosts()), count * hosts().size());
  }
  static double allowed() {
    if (codec() == "none" || codec() == "topk:density=1") return 1e-12;
    if (codec().starts_with("hadamard")) return 0.1;
    return codec().find("density") == std::string::npos ? 3e-4 : 1.0;
  }
};

INSTANTIATE_TEST_SUITE_P(
    Codecs, ShardsByHosts,
    ::testing::Combine(::testing::Values("none", "bf16", "int8", "int8:rounding=stochastic",
                                         "hadamard:bits=4", "topk:density=1", "topk:density=0.1",
                                         "blocktopk:density=0.1"),
                       ::testing::ValuesIn(kShardHosts)));

TEST_P(ShardsByHosts, ReduceScatterReturnsOwnShardOfTheSum) {
  for (const std::size_t count : {0ul, 1ul, 511ul, 513ul, 5003ul}) {
    const auto all = inputs(count);
    EXPECT_LE(squared_error(scatter(all, options()), exact_sum(all)), allowed()) << count;
  }
}

TEST_P(ShardsByHosts, MeanIsSumDividedByRanks) {
  const auto all = inputs(700);
  auto wanted = exact_sum(all);
  for (double& value : wanted) value /= ranks_of(hosts());
  const auto found = scatter(all, options({.reduction = Reduction::kMean}));
  EXPECT_LE(squared_error(found, wanted), allowed());
}

// Sums of hosts have more energy than gradients, but fewer sums are encoded. Top-k selects within
// each shard.
TEST_P(ShardsByHosts, ErrorIsAtMostTenPercentAboveDirectAlgorithm) {
  const auto all = inputs(5003);
  const auto sum = exact_sum(all);
  const double direct = squared_error(scatter(all, {.codec = codec()}), sum);
  EXPECT_LE(squared_error(scatter(all, options()), sum), 1.1 * direct + 1e-12);
}

TEST_P(ShardsByHosts, ReduceScatterIsIndependentOfChunkSize) {
  const auto all = inputs(9001);
  const auto whole = scatter(all, options({.seed = 3, .chunk_count = std::size_t{1} << 30}));
  for (const std::size_t chunk : {1ul, 20000ul})
    EXPECT_EQ(scatter(all, options({.seed = 3, .chunk_count = chunk})), whole) << chunk;
}

TEST_P(ShardsByHosts, AllgatherMatchesDirectAlgorithmBitwise) {
  for (const std::size_t count : {0ul, 1ul, 511ul, 513ul, 9001ul}) {
    const auto all = gradients(ranks_of(hosts()), count);
    const CollectiveOptions others{.codec = codec(), .seed = 5, .chunk_count = 20000};
    EXPECT_EQ(gather(all, options(others)), gather(all, others)) << count;
  }
}

TEST_P(ShardsByHosts, SupportF16Values) {
  const auto ranks = hosts().size();
  std::vector<F16> ones(1030 * ranks, F16{0x3c00});
  run_ranks(ranks_of(hosts()), {}, [&](Transport& transport) {
    std::vector<F16> shard(1030), all(1030 * ranks);
    const CollectiveOptions whole = by_hosts("none", hosts(), {.reduction = Reduction::kMean});
    reduce_scatter(transport, ones, shard, whole);
    allgather(transport, shard, all, options());
    for (const F16 value : shard) ASSERT_EQ(value.bits, 0x3c00);
    if (allowed() < 1e-3)
      for (const F16 value : all) ASSERT_NEAR(value.bits, 0x3c00, 8);
  });
}

// Both collectives share the splits, made only once.
TEST_P(ShardsByHosts, WorkspaceIsReusableAcrossCollectives) {
  const auto all = inputs(900);
  const auto wanted = scatter(all, options());
  run_ranks(ranks_of(hosts()), {}, [&](Transport& transport) {
    const auto rank = static_cast<std::size_t>(transport.rank());
    CollectiveWorkspace workspace;
    const CollectiveOptions with = options({.workspace = &workspace});
    Values shard(900), gathered(900 * hosts().size());
    for (int call = 0; call < 3; ++call) {
      reduce_scatter(transport, all[rank], shard, with);
      allgather(transport, shard, gathered, with);
      reduce_scatter(transport, all[rank], shard, with);
    }
    for (std::size_t i = 0; i < 900; ++i) ASSERT_EQ(shard[i], wanted[rank * 900 + i]);
  });
}

class ShardsByHostsFeedback : public ::testing::TestWithParam<std::tuple<std::string, Hosts>> {};

INSTANTIATE_TEST_SUITE_P(Codecs, ShardsByHostsFeedback,
                         ::testing::Combine(::testing::Values("int8+ef", "hadamard:bits=4+ef",
                                                              "topk:density=0.02+ef",
                                                              "blocktopk:density=0.05+ef"),
                                            ::testing::ValuesIn(kShardHosts)));

// A rank keeps the unsent part of its host's sums for the shards of its group rank.
TEST_P(ShardsByHostsFeedback, ResultsPlusResidualsEqualSumOfInputs) {
  const auto& [codec, hosts] = GetParam();
  constexpr std::size_t kShard = 4999;
  const std::size_t ranks = hosts.size(), count = kShard * ranks;
  const std::size_t encoded = scattered_count(count, hosts);
  std::vector<Values> residuals(ranks, Values(encoded));
  std::vector<StateWords> words(ranks);
  std::vector<double> found(count, 0.0), wanted(count, 0.0);
  for (int step = 0; step < 4; ++step) {
    const auto inputs = gradients(ranks_of(hosts), count, 50 + static_cast<std::uint64_t>(step));
    std::vector<Values> shards(ranks, Values(kShard));
    run_ranks(ranks_of(hosts), {}, [&, &codec = codec, &hosts = hosts](Transport& transport) {
      const auto rank = static_cast<std::size_t>(transport.rank());
      const CollectiveState state{residuals[rank], {}, &words[rank]};
      reduce_scatter(transport, inputs[rank], shards[rank],
                     by_hosts(codec, hosts, {.state = &state}));
    });
    const auto sum = exact_sum(inputs);
    for (std::size_t i = 0; i < count; ++i) {
      wanted[i] += sum[i];
      found[i] += shards[i / kShard][i % kShard];
    }
  }
  const HostGroups groups(hosts, ranks_of(hosts));
  for (int rank = 0; rank < groups.ranks(); ++rank) {
    auto retained = residuals[static_cast<std::size_t>(rank)].begin();
    for (const int owner : groups.owners(groups.local_rank(rank)))
      for (std::size_t i = 0; i < kShard; ++i)
        found[static_cast<std::size_t>(owner) * kShard + i] += *retained++;
  }
  for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(found[i], wanted[i], 2e-4) << i;
}

TEST_P(ShardsByHostsFeedback, AllgatherResidualsMatchDirectAlgorithm) {
  const auto& [codec, hosts] = GetParam();
  const auto inputs = gradients(ranks_of(hosts), 3001);
  const auto residuals_of = [&](CollectiveOptions options) {
    std::vector<Values> residuals(inputs.size(), Values(3001));
    run_ranks(static_cast<int>(inputs.size()), {}, [&](Transport& transport) {
      const auto rank = static_cast<std::size_t>(transport.rank());
      StateWords words;
      const CollectiveState state{residuals[rank], {}, &words};
      CollectiveOptions own = options;
      own.state = &state;
      Values all(3001 * inputs.size());
      allgather(transport, inputs[rank], all, own);
    });
    return residuals;
  };
  EXPECT_EQ(residuals_of(by_hosts(codec, hosts)), residuals_of({.codec = codec}));
}

TEST(ScatteredCount, MatchesKnownCountsForHosts) {
  EXPECT_EQ(scattered_count(1200, Hosts{0, 0, 1, 1}), 600u);
  EXPECT_EQ(scattered_count(1200, Hosts{0, 1, 2, 0, 1, 2}), 600u);
  EXPECT_EQ(scattered_count(1200, Hosts{0, 0, 0, 1, 1, 1}), 400u);
  EXPECT_EQ(scattered_count(1200, Hosts{0, 0, 1}), 1200u);
  EXPECT_EQ(scattered_count(1200, Hosts{0, 1, 2}), 1200u);
  EXPECT_EQ(scattered_count(1200, Hosts{4, 4}), 0u);
  EXPECT_THROW(scattered_count(1200, Hosts{}), InvalidArgumentError);
}

/// Statistics of rank 0 for a reduce_scatter and an allgather of `count` values per rank.
std::array<CollectiveStatistics, 2> statistics_of(const std::string& link, int ranks,
                                                  std::size_t count) {
  std::array<CollectiveStatistics, 2> found;
  run_ranks(ranks, parse_link(link), [&](Transport& transport) {
    const auto all = static_cast<std::size_t>(ranks);
    Values input(count * all, 1.0f), shard(count), output(count * all);
    CollectiveStatistics scattered, gathered;
    CollectiveOptions options{.codec = "int8", .algorithm = Algorithm::kHierarchical};
    options.statistics = &scattered;
    reduce_scatter(transport, input, shard, options);
    options.statistics = &gathered;
    allgather(transport, shard, output, options);
    for (const float value : output) ASSERT_NEAR(value, static_cast<float>(ranks), 0.1f);
    if (transport.rank() == 0) found = {scattered, gathered};
  });
  return found;
}

TEST(ShardsByHostsGroups, DefaultToTransportHosts) {
  const auto cases = [](const std::string& link, int ranks) {
    const auto found = statistics_of(link, ranks, 4000);
    return std::pair(found[0].algorithm, found[1].algorithm);
  };
  const auto by_hosts = std::pair(Algorithm::kHierarchical, Algorithm::kHierarchical);
  const auto direct = std::pair(Algorithm::kOneShot, Algorithm::kOneShot);
  EXPECT_EQ(cases("none,per_host=2", 4), by_hosts);
  EXPECT_EQ(cases("none,per_host=2", 6), by_hosts);
  EXPECT_EQ(cases("none,per_host=2", 3), direct);  // hosts of two ranks and of one
  EXPECT_EQ(cases("none,per_host=4", 4), direct);
  EXPECT_EQ(cases("none", 3), direct);
}

// Two hosts of two ranks. reduce_scatter sends half of the gradient to the neighbor as f32. Then
// half of the host's half goes to the other host. allgather sends a shard to the other host and two
// shards to the neighbor.
TEST(ShardsByHostsGroups, OnlyEncodedValuesLeaveAHost) {
  constexpr std::size_t kShard = 1 << 18;
  const auto found = statistics_of("none,per_host=2", 4, kShard);
  EXPECT_NEAR(static_cast<double>(found[0].sent_bytes), kShard * (2 * 4 + 1.0156), 0.1 * kShard);
  EXPECT_NEAR(static_cast<double>(found[1].sent_bytes), kShard * 3 * 1.0156, 0.1 * kShard);
}

// No data leaves a single host, so nothing is encoded.
TEST(ShardsByHostsGroups, SingleHostSendsUnencodedValues) {
  const Hosts one{0, 0, 0};
  const auto inputs = gradients(3, 3 * 1001);
  EXPECT_LE(squared_error(scatter(inputs, by_hosts("int4", one)), exact_sum(inputs)), 1e-12);
  for (const Values& output : gather(inputs, by_hosts("int4", one)))
    EXPECT_EQ(output, gather(inputs, {.codec = "none"}).front());
}

/// The error of rank 0 for a call refused on all ranks.
std::string refused(int ranks, const CollectiveOptions& options, bool scatters = true) {
  const auto errors = errors_of<InvalidArgumentError>(ranks, [&](Transport& transport) {
    Values input(100 * static_cast<std::size_t>(ranks), 1.0f), shard(100, 1.0f);
    if (scatters) return reduce_scatter(transport, input, shard, options);
    allgather(transport, shard, input, options);
  });
  return errors[0];
}

TEST(ShardsByHostsErrors, ReportUnevenHostsAndWrongResidualSize) {
  const Hosts uneven{0, 0, 1}, even{0, 0, 1, 1};
  EXPECT_EQ(refused(3, by_hosts("int8", uneven)),
            "reduce_scatter needs the same number of ranks on each host, but the hosts have 2, 1: "
            "choose an algorithm other than hierarchical, or leave hosts out");
  EXPECT_NE(refused(3, by_hosts("int8", uneven), false).find("allgather needs the same"),
            std::string::npos);
  Values residual(400);
  StateWords words;
  const CollectiveState state{residual, {}, &words};
  EXPECT_EQ(refused(4, by_hosts("int8+ef", even, {.state = &state})),
            "the state's residual (see scattered_count) has 400 values, but this rank needs 200");
}

TEST(ShardsByHostsErrors, HostMismatchFailsOnAllRanks) {
  const Hosts some{0, 0, 1, 1}, others{0, 1, 0, 1};
  expect_all_fail(4, [&](Transport& transport) {
    Values input(4000), shard(1000);
    reduce_scatter(transport, input, shard,
                   by_hosts("int8", transport.rank() == 2 ? others : some));
  });
}

// As many ranks as grid positions: each rank owns a shard.
const std::vector<int> kShardDims[] = {{2, 2}, {3, 2}, {2, 3, 2}};

TEST(ShardsOnGrids, AreNearTheSumForAnyChunkSize) {
  for (const std::vector<int>& dims : kShardDims) {
    int ranks = 1;
    for (const int digit : dims) ranks *= digit;
    for (const auto& [codec, allowed] : {std::pair<std::string, double>{"none", 1e-12},
                                         {"int8:rounding=stochastic", 1.5e-3},
                                         {"topk:density=1", 1e-12},
                                         {"blocktopk:density=0.2", 1.0}}) {
      SCOPED_TRACE(codec + " " + ::testing::PrintToString(dims));
      const auto inputs = gradients(ranks, 9001 * static_cast<std::size_t>(ranks));
      CollectiveOptions options{.codec = codec, .dims = dims};
      const Values whole = scatter(inputs, options);
      EXPECT_LE(squared_error(whole, exact_sum(inputs)), allowed);
      options.chunk_count = 5000;
      EXPECT_EQ(scatter(inputs, options), whole);
      EXPECT_EQ(gather(inputs, options), gather(inputs, {.codec = codec}));
    }
  }
}

TEST(ShardsOnGrids, SendOneMessagePerPeerInEachDimension) {
  run_ranks(12, {}, [](Transport& transport) {
    const std::vector<int> dims{2, 3, 2};
    const CollectiveOptions options{.codec = "int8", .dims = dims};
    Values input(1200), shard(100);
    reduce_scatter(transport, input, shard, options);
    EXPECT_EQ(transport.counters().sent_messages, 4u);
    allgather(transport, shard, input, options);
    EXPECT_EQ(transport.counters().sent_messages, 8u);
  });
}

TEST(ShardsOnGrids, RejectWrongDimsAndErrorFeedback) {
  const std::vector<int> nine{3, 3}, four{2, 2};
  EXPECT_EQ(refused(10, {.codec = "int8", .dims = nine}),
            "reduce_scatter needs dims with a product of 10, the number of ranks, not 9");
  Values residual(400);
  StateWords words;
  const CollectiveState state{residual, {}, &words};
  EXPECT_NE(refused(4, {.codec = "int8+ef", .dims = four, .state = &state})
                .find("keeps no residual of the partial sums"),
            std::string::npos);
}

}  // namespace
}  // namespace tersor::testing
