// Hierarchical and grid schedules of reduce_scatter and allgather: each rank has a part of the
// gradient.
#include "tests/schedules/schedule_walk.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

namespace tersor::testing {
namespace {

// The schedule, not the collective with the same name.
constexpr Schedule (*kScatter)(const Group&) = reduce_scatter;

/// Every rank's part is the sum of all gradients, encoded `encodings` times.
void expect_scattered(ScheduleWalk& walk, int ranks, int encodings) {
  ASSERT_EQ(walk.run(), "");
  for (int rank = 0; rank < ranks; ++rank) {
    const Expression sum = walk.value(rank, static_cast<std::size_t>(rank));
    const auto contributions = walk.expressions().contributions(sum);
    ASSERT_EQ(contributions.size(), static_cast<std::size_t>(ranks));
    for (const auto& [from, times] : contributions) ASSERT_EQ(times, 1) << from;
    ASSERT_EQ(walk.expressions().encodings(sum), encodings);
  }
}

void expect_gathered(ScheduleWalk& walk, int ranks) {
  ASSERT_EQ(walk.run(), "");
  for (int part = 0; part < ranks; ++part)
    for (int rank = 0; rank < ranks; ++rank)
      ASSERT_EQ(walk.value(rank, static_cast<std::size_t>(part)),
                walk.expressions().encoded(walk.expressions().gradient(part)));
}

/// `hosts` hosts of `each` ranks: consecutive, interleaved, ascending and descending.
std::vector<std::vector<int>> even_hosts(int hosts, int each) {
  std::vector<std::vector<int>> all(3);
  for (int rank = 0; rank < hosts * each; ++rank) {
    const int iteration = rank / hosts, next = rank % hosts;
    all[0].push_back(rank / each);
    all[1].push_back(next);
    all[2].push_back(iteration % 2 == 0 ? next : hosts - 1 - next);
  }
  return all;
}

// Only ranks with equal group ranks exchange data between hosts: 1 / each of a gradient, except for
// the own host's part.
TEST(Schedules, HierarchicalShards) {
  for (const int hosts : {2, 3, 4, 8, 33})
    for (const int each : {2, 3, 4, 8})
      for (const std::vector<int>& numbers : even_hosts(hosts, each)) {
        SCOPED_TRACE(::testing::PrintToString(numbers));
        const int n = hosts * each;
        const Layout scatters = hierarchical_scatter_layout(numbers);
        const Layout gathers = hierarchical_gather_layout(numbers);
        ScheduleWalk scattered(scatters), gathered(gathers);
        expect_scattered(scattered, n, 1);
        expect_gathered(gathered, n);
        const double abroad = (hosts - 1.0) / hosts / each, within = (each - 1.0) / each;
        for (int rank = 0; rank < n; ++rank) {
          EXPECT_NEAR(scattered.sent(rank).raw, within, 1e-9);
          EXPECT_NEAR(scattered.sent(rank).encoded, abroad, 1e-9);
          EXPECT_NEAR(scattered.sent(rank).abroad, abroad, 1e-9);
          EXPECT_NEAR(gathered.sent(rank).abroad, (hosts - 1.0) / n, 1e-9);
          EXPECT_NEAR(gathered.sent(rank).encoded, (n - 1.0) / n, 1e-9);
          EXPECT_EQ(gathered.sent(rank).messages, static_cast<std::size_t>(hosts + each - 2));
        }
      }
}

/// Every row is made once by its sender and arrives unchanged. Each rank sends `messages` messages.
void expect_dealt(const std::vector<Group>& all_groups, std::size_t messages) {
  const std::size_t n = all_groups.size();
  Layout layout{.schedules = {}, .parts = {}, .part_count = n * n};
  for (const Group& group : all_groups) {
    const auto own = static_cast<std::size_t>(group.rank_at(group.rank));
    layout.schedules.push_back(all_to_all(group));
    auto& parts = layout.parts.emplace_back(n * (layout.schedules.back().size() + 1));
    for (int group_rank = 0; group_rank < static_cast<int>(n); ++group_rank) {
      const auto peer = static_cast<std::size_t>(group.rank_at(group_rank));
      parts[shard_to(group, group_rank)] = {own * n + peer};
      parts[shard_from(group, group_rank)] = {peer * n + own};
    }
    for (const StepMessage& message : layout.schedules.back().front().receives)
      for (std::size_t i = 0; message.stride > 1 && i < message.shards; ++i)
        parts[message.shard + i * message.stride] = {
            static_cast<std::size_t>(message.peer) * n +
            static_cast<std::size_t>(group.rank_at(group.grid.subgroup(group.rank, 1)[i]))};
  }
  ScheduleWalk walk(layout);
  ASSERT_EQ(walk.run(), "");
  for (std::size_t to = 0; to < n; ++to)
    for (std::size_t from = 0; from < n; ++from)
      ASSERT_EQ(walk.value(static_cast<int>(to), from * n + to),
                walk.expressions().encoded(walk.expressions().gradient(static_cast<int>(from))));
  for (int rank = 0; rank < static_cast<int>(n); ++rank)
    EXPECT_EQ(walk.sent(rank).messages, messages) << rank;
}

TEST(Schedules, HierarchicalAndGridAllToAll) {
  for (const int hosts : {2, 3, 8})
    for (const int each : {2, 3, 8})
      for (const std::vector<int>& numbers : even_hosts(hosts, each)) {
        SCOPED_TRACE(::testing::PrintToString(numbers));
        const HostGroups groups(numbers, hosts * each);
        std::vector<Group> by_host, on_grid;
        for (int rank = 0; rank < hosts * each; ++rank) {
          by_host.push_back(hierarchical_group(groups, rank));
          on_grid.push_back(full_group(rank, Grid(std::vector{each, hosts}, hosts * each)));
        }
        const auto messages = static_cast<std::size_t>(hosts + each - 2);
        expect_dealt(by_host, messages);
        expect_dealt(on_grid, messages);
      }
}

TEST(Schedules, GridShards) {
  const std::vector<int> digits[] = {{2, 2}, {3, 2}, {2, 3, 4}, {4, 3, 2}, {8, 8}};
  for (const std::vector<int>& given : digits) {
    SCOPED_TRACE(::testing::PrintToString(given));
    const int n = std::accumulate(given.begin(), given.end(), 1, std::multiplies<>());
    std::vector<Group> all_groups;
    for (int rank = 0; rank < n; ++rank) all_groups.push_back(full_group(rank, Grid(given, n)));
    const Layout scatters = owned_layout(kScatter, all_groups);
    const Layout gathers = owned_layout(all_gather, all_groups);
    ScheduleWalk scattered(scatters), gathered(gathers);
    expect_scattered(scattered, n, static_cast<int>(given.size()));
    expect_gathered(gathered, n);
    const auto messages =
        static_cast<std::size_t>(std::accumulate(given.begin(), given.end(), 0)) - given.size();
    for (const ScheduleWalk* walk : {&scattered, &gathered})
      for (int rank = 0; rank < n; ++rank) {
        EXPECT_EQ(walk->sent(rank).messages, messages) << rank;
        EXPECT_NEAR(walk->sent(rank).encoded, (n - 1.0) / n, 1e-9) << rank;
      }
  }
}

}  // namespace
}  // namespace tersor::testing
