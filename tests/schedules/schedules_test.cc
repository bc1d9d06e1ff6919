// The schedules of all ranks compared with the table of docs/explain/algorithms.md, for many
// numbers of ranks.
#include "tests/schedules/schedule_walk.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tersor::testing {
namespace {

// The schedules, not the collectives with the same names.
constexpr Schedule (*kReduceScatter)(const Group&) = reduce_scatter;
constexpr Schedule (*kAllToAll)(const Group&) = all_to_all;

std::vector<int> rank_counts() {
  std::vector<int> sizes(33);
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.insert(sizes.end(), {48, 64, 100});
  return sizes;
}

/// Every rank gets the same expression for each part. The expression contains every gradient once,
/// encoded `encodings` times.
void expect_allreduce(const Layout& layout, ScheduleWalk& walk, int encodings) {
  ASSERT_EQ(walk.run(), "");
  const auto ranks = static_cast<int>(layout.schedules.size());
  for (std::size_t part = 0; part < layout.part_count; ++part) {
    const Expression sum = walk.value(0, part);
    for (int rank = 1; rank < ranks; ++rank) ASSERT_EQ(walk.value(rank, part), sum) << rank;
    const auto contributions = walk.expressions().contributions(sum);
    ASSERT_EQ(contributions.size(), static_cast<std::size_t>(ranks));
    for (const auto& [rank, times] : contributions) ASSERT_EQ(times, 1) << rank;
    ASSERT_EQ(walk.expressions().encodings(sum), encodings);
  }
}

void expect_sent(const ScheduleWalk& walk, int ranks, std::size_t messages, double encoded) {
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(walk.sent(rank).messages, messages) << rank;
    EXPECT_NEAR(walk.sent(rank).encoded, encoded, 1e-9) << rank;
  }
}

TEST(Schedules, TwoShot) {
  for (const int n : rank_counts()) {
    SCOPED_TRACE(n);
    const Layout layout = flat_layout(two_shot, n, static_cast<std::size_t>(n));
    ScheduleWalk walk(layout);
    expect_allreduce(layout, walk, 2);
    expect_sent(walk, n, 2 * static_cast<std::size_t>(n - 1), 2.0 * (n - 1) / n);
  }
}

std::vector<Grid> grids(const std::vector<int>& sizes) {
  std::vector<Grid> grids;
  for (const int n : sizes) grids.push_back(Grid::standard(n));
  const std::vector<int> digits[] = {{2, 2}, {3, 2}, {2, 3, 4}, {4, 3, 2}, {8, 8}, {4, 4, 4}};
  for (const std::vector<int>& given : digits) {
    const int owners = std::accumulate(given.begin(), given.end(), 1, std::multiplies<>());
    for (int n = owners; n * 0.9 <= owners; ++n) grids.emplace_back(given, n);
  }
  return grids;
}

TEST(Schedules, Grids) {
  std::vector<int> sizes(128);
  std::iota(sizes.begin(), sizes.end(), 1);
  for (const Grid& grid : grids(sizes)) {
    SCOPED_TRACE(::testing::PrintToString(grid.digits()) + std::to_string(grid.group_size()));
    const Layout layout = grid_layout(grid);
    ScheduleWalk walk(layout);
    expect_allreduce(layout, walk, 1 + grid.dimensions());
    const double all = 2.0 * (grid.owners() - 1) / grid.owners();
    for (int rank = 0; rank < grid.group_size(); ++rank) {
      EXPECT_EQ(walk.sent(rank).messages, messages_of(grid, rank));
      if (grid.group_size() == grid.owners()) EXPECT_NEAR(walk.sent(rank).encoded, all, 1e-9);
    }
  }
}

TEST(Schedules, OneShot) {
  for (const int n : rank_counts()) {
    SCOPED_TRACE(n);
    const Layout layout = flat_layout(one_shot, n, 1);
    ScheduleWalk walk(layout);
    expect_allreduce(layout, walk, 1);
    expect_sent(walk, n, static_cast<std::size_t>(n - 1), n - 1);
  }
}

TEST(Schedules, NativeSum) {
  for (const int n : rank_counts()) {
    SCOPED_TRACE(n);
    const Layout layout = flat_layout(native_sum, n, static_cast<std::size_t>(n));
    ScheduleWalk walk(layout);
    expect_allreduce(layout, walk, 0);
    expect_sent(walk, n, 0, 0);
  }
}

// The results of all rounds except the last are used only by the codec.
TEST(Schedules, SeveralRounds) {
  const Exchange two_shot_last[] = {Exchange::kNativeMaximum, Exchange::kTwoShot};
  const Exchange native_last[] = {Exchange::kNativeMaximum, Exchange::kTwoShot,
                                  Exchange::kNativeSum};
  for (const int n : rank_counts()) {
    SCOPED_TRACE(n);
    for (const std::span<const Exchange> rounds :
         {std::span<const Exchange>(two_shot_last), std::span<const Exchange>(native_last)}) {
      const Layout layout =
          flat_layout([&](const Group& group) { return allreduce_by(rounds, group); }, n,
                      static_cast<std::size_t>(n));
      ScheduleWalk walk(layout);
      expect_allreduce(layout, walk, rounds.size() == 2 ? 2 : 0);
      EXPECT_EQ(layout.schedules[0].back().round, rounds.size() - 1);
    }
  }
}

TEST(Schedules, ReduceScatter) {
  for (const int n : rank_counts()) {
    SCOPED_TRACE(n);
    const Layout layout = flat_layout(kReduceScatter, n, static_cast<std::size_t>(n));
    ScheduleWalk walk(layout);
    ASSERT_EQ(walk.run(), "");
    for (int rank = 0; rank < n; ++rank) {
      const Expression sum = walk.value(rank, static_cast<std::size_t>(rank));
      ASSERT_EQ(walk.expressions().contributions(sum).size(), static_cast<std::size_t>(n));
      ASSERT_EQ(walk.expressions().encodings(sum), 1);
    }
    expect_sent(walk, n, static_cast<std::size_t>(n - 1), (n - 1.0) / n);
  }
}

TEST(Schedules, AllGather) {
  for (const int n : rank_counts()) {
    SCOPED_TRACE(n);
    const Layout layout = flat_layout(all_gather, n, static_cast<std::size_t>(n));
    ScheduleWalk walk(layout);
    ASSERT_EQ(walk.run(), "");
    for (int part = 0; part < n; ++part)
      for (int rank = 0; rank < n; ++rank)
        ASSERT_EQ(walk.value(rank, static_cast<std::size_t>(part)),
                  walk.expressions().encoded(walk.expressions().gradient(part)));
    expect_sent(walk, n, static_cast<std::size_t>(n - 1), (n - 1.0) / n);
  }
}

using ScheduleTo = Schedule (*)(const Group&, int);

Layout rooted_layout(ScheduleTo schedule_by, int ranks, int root, std::size_t shards) {
  return flat_layout([&](const Group& group) { return schedule_by(group, root); }, ranks, shards);
}

// Every rank gets the root's value, encoded once. A rank sends at most as many messages as the tree
// has levels, or one in a chain.
TEST(Schedules, Broadcasts) {
  for (const int n : rank_counts())
    for (const int root : {0, n / 2, n - 1})
      for (const ScheduleTo schedule_by : {chain_broadcast, tree_broadcast}) {
        if (n == 1) continue;
        SCOPED_TRACE(n);
        const Layout layout = rooted_layout(schedule_by, n, root, 1);
        ScheduleWalk walk(layout);
        ASSERT_EQ(walk.run(), "");
        const Expression wanted = walk.expressions().encoded(walk.expressions().gradient(root));
        std::size_t messages = 0;
        for (int rank = 0; rank < n; ++rank) {
          ASSERT_EQ(walk.value(rank, 0), wanted) << rank;
          messages += walk.sent(rank).messages;
          EXPECT_LE(walk.sent(rank).messages,
                    schedule_by == chain_broadcast ? 1u : layout.schedules[0].size());
        }
        EXPECT_EQ(messages, static_cast<std::size_t>(n - 1));
      }
}

void expect_sums_at_root(const Grid& grid, int root) {
  const auto shards = static_cast<std::size_t>(grid.owners());
  const auto schedule_by = [&](const Group& group) {
    return reduce_to(full_group(group.rank, grid), root);
  };
  const Layout layout = flat_layout(schedule_by, grid.group_size(), shards),
               all = grid_layout(grid);
  ScheduleWalk walk(layout), wanted(all);
  ASSERT_EQ(walk.run() + wanted.run(), "");
  for (std::size_t part = 0; part < shards; ++part)
    ASSERT_EQ(walk.expressions().text(walk.value(root, part)),
              wanted.expressions().text(wanted.value(root, part)));
  for (int rank = 0; grid.is_direct() && rank < grid.group_size(); ++rank) {
    EXPECT_EQ(walk.sent(rank).messages, shards - (rank == root ? 1 : 0));
    EXPECT_NEAR(walk.sent(rank).encoded, 1 - (rank == root ? 1.0 / grid.group_size() : 0.0), 1e-9);
  }
}

TEST(Schedules, ReduceAtRootMatchesTwoShotBits) {
  for (const Grid& grid : grids(rank_counts()))
    for (const int root : {0, grid.group_size() - 1}) {
      SCOPED_TRACE(::testing::PrintToString(grid.digits()) + std::to_string(grid.group_size()));
      expect_sums_at_root(grid, root);
    }
}

// Each rank sends one message with the sum of its gradient and the received sum. The root adds
// last.
TEST(Schedules, ChainReduceAddsRanksInSequence) {
  for (const int n : rank_counts())
    for (const int root : {0, n / 2, n - 1}) {
      if (n == 1) continue;
      SCOPED_TRACE(n);
      const Layout layout = rooted_layout(chain_reduce, n, root, 1);
      ScheduleWalk walk(layout);
      ASSERT_EQ(walk.run(), "");
      const Expression sum = walk.value(root, 0);
      const auto contributions = walk.expressions().contributions(sum);
      ASSERT_EQ(contributions.size(), static_cast<std::size_t>(n));
      for (const auto& [rank, times] : contributions) ASSERT_EQ(times, 1) << rank;
      EXPECT_EQ(walk.expressions().encodings(sum), n - 1);
      for (int rank = 0; rank < n; ++rank)
        EXPECT_EQ(walk.sent(rank).messages, rank == root ? 0u : 1u);
    }
}

TEST(Schedules, GatherAndScatter) {
  for (const int n : rank_counts())
    for (const int root : {0, n - 1}) {
      SCOPED_TRACE(n);
      const auto shards = static_cast<std::size_t>(n);
      const Layout gathers = rooted_layout(gather_to, n, root, shards);
      const Layout scatters = rooted_layout(scatter_from, n, root, shards);
      ScheduleWalk gathered(gathers), scattered(scatters);
      ASSERT_EQ(gathered.run() + scattered.run(), "");
      for (int rank = 0; rank < n; ++rank) {
        const auto part = static_cast<std::size_t>(rank);
        Expressions& all = gathered.expressions();
        EXPECT_EQ(gathered.value(root, part), all.encoded(all.gradient(rank)));
        Expressions& own = scattered.expressions();
        EXPECT_EQ(scattered.value(rank, part), own.encoded(own.gradient(root)));
      }
      EXPECT_EQ(scattered.sent(root).messages, shards - 1);
      EXPECT_EQ(gathered.sent(root).messages, 0u);
    }
}

// Part from · n + to is sent between two ranks.
TEST(Schedules, AllToAll) {
  for (const int n : rank_counts()) {
    SCOPED_TRACE(n);
    const auto ranks = static_cast<std::size_t>(n);
    Layout layout = flat_layout(kAllToAll, n, 2 * ranks);
    layout.part_count = ranks * ranks;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      for (std::size_t peer = 0; peer < ranks; ++peer) {
        layout.parts[rank][peer] = {rank * ranks + peer};
        layout.parts[rank][ranks + peer] = {peer * ranks + rank};
      }
    ScheduleWalk walk(layout);
    ASSERT_EQ(walk.run(), "");
    for (int to = 0; to < n; ++to)
      for (int from = 0; from < n; ++from)
        ASSERT_EQ(walk.value(to, static_cast<std::size_t>(from * n + to)),
                  walk.expressions().encoded(walk.expressions().gradient(from)));
    expect_sent(walk, n, ranks - 1, (n - 1.0) / n / n);
  }
}

const std::vector<std::vector<int>> kHosts{
    {0, 0, 1, 1},       {0, 1, 1, 0},
    {0, 0, 1},          {0, 0, 0, 1, 1, 2},
    {7, -3, 7, -3, 7},  {0, 1, 2, 0, 1, 2, 2},
    {0, 0, 0, 0, 1, 1}, {0, 0, 1, 1, 2, 2, 3, 3},
    {0, 1, 0, 1, 0, 1}, {3, 3, 3, 2, 2, 2, 1, 1, 1, 0, 0, 0}};

TEST(Schedules, Hierarchies) {
  for (const auto& [between, encodings] :
       {std::pair(Exchange::kTwoShot, 2), {Exchange::kGather, 1}, {Exchange::kNativeSum, 0}})
    for (const std::vector<int>& hosts : kHosts) {
      SCOPED_TRACE(::testing::PrintToString(hosts));
      const Layout layout = hierarchical_layout(hosts, between);
      ScheduleWalk walk(layout);
      expect_allreduce(layout, walk, encodings);
    }
}

TEST(Schedules, HierarchicalTrafficMatchesDocumentedTable) {
  for (const int hosts : {2, 3, 4, 8})
    for (const int each : {2, 3, 4, 8}) {
      std::vector<int> numbers;
      for (int rank = 0; rank < hosts * each; ++rank) numbers.push_back(rank / each);
      const double within = 2.0 * (each - 1) / each;
      const Layout two = hierarchical_layout(numbers, Exchange::kTwoShot);
      const Layout one = hierarchical_layout(numbers, Exchange::kGather);
      ScheduleWalk two_walk(two), one_walk(one);
      ASSERT_EQ(two_walk.run() + one_walk.run(), "");
      for (int rank = 0; rank < hosts * each; ++rank) {
        EXPECT_NEAR(two_walk.sent(rank).raw, within, 1e-9);
        EXPECT_NEAR(two_walk.sent(rank).encoded, 2.0 * (hosts - 1) / hosts / each, 1e-9);
        EXPECT_NEAR(one_walk.sent(rank).encoded, (hosts - 1.0) / each, 1e-9);
      }
    }
}

// Otherwise all ranks would wait for one rank's link.
TEST(Schedules, RanksSendToDistinctPeersInEachIteration) {
  for (const int n : {2, 3, 8, 33})
    for (const auto& schedule_by : {two_shot, one_shot})
      for (std::size_t iteration = 0; iteration < static_cast<std::size_t>(n); ++iteration) {
        std::set<int> peers;
        for (int rank = 0; rank < n; ++rank)
          peers.insert(schedule_by(full_group(rank, n)).front().sends[iteration].peer);
        EXPECT_EQ(peers.size(), static_cast<std::size_t>(n)) << iteration;
      }
}

// Checks that the walk detects errors.
std::string said_of(const Layout& layout) { return ScheduleWalk(layout).run(); }

TEST(ScheduleWalk, DetectsUnreceivedMessage) {
  Layout layout = flat_layout(two_shot, 4, 4);
  layout.schedules[2][1].receives.pop_back();
  EXPECT_EQ(said_of(layout), "step 1, rank 2: does not take what rank 3 sends");
}

TEST(ScheduleWalk, DetectsUnsentMessage) {
  Layout layout = flat_layout(two_shot, 4, 4);
  layout.schedules[1][0].sends.erase(layout.schedules[1][0].sends.begin());  // to the next rank
  EXPECT_EQ(said_of(layout), "step 0, rank 2: waits in vain for rank 1");
}

TEST(ScheduleWalk, DetectsSwappedShards) {
  Layout layout = flat_layout(two_shot, 4, 4);
  std::swap(layout.schedules[1][0].sends[2].shard, layout.schedules[1][0].sends[3].shard);
  EXPECT_EQ(said_of(layout), "step 0, rank 0: gets another shard from rank 1");
}

TEST(ScheduleWalk, DetectsDifferentAdditionOrder) {
  Layout layout = flat_layout(one_shot, 4, 1);
  std::swap(layout.schedules[3][0].receives[0], layout.schedules[3][0].receives[1]);
  EXPECT_EQ(said_of(layout), "step 0, rank 3: adds in another order than that of shards and ranks");
}

TEST(ScheduleWalk, DetectsMissingStep) {
  Layout layout = flat_layout(two_shot, 4, 4);
  layout.schedules[3].pop_back();
  EXPECT_EQ(said_of(layout), "step 0, rank 3: has other steps");
}

TEST(ScheduleWalk, ValueRevealsMissingContribution) {
  Layout layout = flat_layout(one_shot, 3, 1);
  for (Schedule& schedule : layout.schedules) {
    std::erase(schedule[0].sends, StepMessage{1, 0});
    if (&schedule == &layout.schedules[1]) schedule[0].receives.clear();
  }
  ScheduleWalk walk(layout);
  EXPECT_EQ(walk.run(), "");
  EXPECT_NE(walk.value(0, 0), walk.value(1, 0));
  EXPECT_EQ(walk.expressions().contributions(walk.value(1, 0)).size(), 1u);
}

}  // namespace
}  // namespace tersor::testing
