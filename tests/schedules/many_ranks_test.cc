// Grids of hundreds and thousands of ranks, compared with the table of docs/explain/algorithms.md.
#include "tests/schedules/shard_walk.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tersor::testing {
namespace {

std::vector<Schedule> schedules_of(const Grid& grid) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < grid.group_size(); ++rank)
    schedules.push_back(two_shot(full_group(rank, grid)));
  return schedules;
}

/// All ranks get the same frames. The frames contain every gradient once, and the number of
/// encodings is the number of dimensions plus one.
void expect_allreduce(const Grid& grid) {
  SCOPED_TRACE(::testing::PrintToString(grid.digits()) + std::to_string(grid.group_size()));
  const auto shards = static_cast<std::size_t>(grid.owners());
  const std::vector<Schedule> schedules = schedules_of(grid);
  ShardWalk walk(schedules, shards);
  ASSERT_EQ(walk.run(), "");
  for (std::size_t shard = 0; shard < shards; ++shard) {
    ASSERT_EQ(walk.result(shard).from.count(), static_cast<std::size_t>(grid.group_size()));
    ASSERT_EQ(walk.result(shard).encodings, 1 + grid.dimensions());
  }
  for (int rank = 0; rank < grid.group_size(); ++rank) {
    ASSERT_EQ(walk.sent(rank).messages, messages_of(grid, rank)) << rank;
    if (grid.group_size() == grid.owners())
      ASSERT_NEAR(walk.sent(rank).encoded, 2.0 * (grid.owners() - 1) / grid.owners(), 1e-9);
  }
}

TEST(ManyRanks, StandardGrids) {
  for (const int ranks : {128, 251, 256, 1000, 1021, 1024, 4093, 4096})
    expect_allreduce(Grid::standard(ranks));
}

TEST(ManyRanks, GridsOfOneToThreeDimensions) {
  const std::pair<int, std::vector<std::vector<int>>> cases[] = {
      {256, {{256}, {16, 16}, {8, 8, 4}}},
      {1000, {{1000}, {40, 25}, {10, 10, 10}}},
      {1024, {{32, 32}, {16, 8, 8}, {8, 8, 16}}},
      {4096, {{64, 64}, {16, 16, 16}, {16, 16, 15}}}};
  for (const auto& [ranks, all] : cases)
    for (const std::vector<int>& digits : all) expect_allreduce(Grid(digits, ranks));
}

// The table's formula: 2 (p1 - 1 + p2 - 1 + …).
TEST(ManyRanks, MessageCountFollowsGridDimensions) {
  EXPECT_EQ(messages_of(Grid(1024), 5), 2u * 1023);
  const int square[] = {32, 32}, cube[] = {16, 16, 16};
  EXPECT_EQ(messages_of(Grid(square, 1024), 5), 2u * (31 + 31));
  EXPECT_EQ(messages_of(Grid(cube, 4096), 5), 2u * (15 + 15 + 15));
}

// Checks that the walk detects errors, with six ranks on a grid of 3 x 2.
class ShardWalkFinds : public ::testing::Test {
 protected:
  std::string said() const { return ShardWalk(schedules_, 6).run(); }

  static constexpr int kDigits[] = {3, 2};
  std::vector<Schedule> schedules_ = schedules_of(Grid(kDigits, 6));
};

TEST_F(ShardWalkFinds, NoErrorInValidSchedules) { EXPECT_EQ(said(), ""); }

TEST_F(ShardWalkFinds, UnreceivedMessage) {
  schedules_[2][1].receives.pop_back();
  EXPECT_EQ(said(), "step 1, rank 2: is sent more");
}

TEST_F(ShardWalkFinds, UnsentMessage) {
  std::erase_if(schedules_[1][0].sends,
                [](const StepMessage& message) { return message.peer == 2; });
  EXPECT_EQ(said(), "step 0, rank 2: waits in vain for rank 1");
}

TEST_F(ShardWalkFinds, SwappedShards) {
  std::swap(schedules_[1][0].sends[0].shard, schedules_[1][0].sends[1].shard);
  EXPECT_EQ(said(), "step 0, rank 0: gets other shards from rank 1");
}

TEST_F(ShardWalkFinds, DuplicateContribution) {
  StepMessage once_more = schedules_[3][0].receives.front();
  once_more.peer = 1;  // in rank 0's group
  schedules_[3][0].receives.push_back(once_more);
  schedules_[1][0].sends.push_back({3, once_more.shard, once_more.shards});
  EXPECT_EQ(said(), "step 2, rank 0: adds a gradient twice");
}

TEST_F(ShardWalkFinds, MissingContribution) {
  std::erase_if(schedules_[1][0].sends,
                [](const StepMessage& message) { return message.peer == 2; });
  std::erase_if(schedules_[2][0].receives,
                [](const StepMessage& message) { return message.peer == 1; });
  ShardWalk walk(schedules_, 6);
  EXPECT_EQ(walk.run(), "");
  EXPECT_EQ(walk.result(4).from.count(), 5u);
}

TEST_F(ShardWalkFinds, UndecodedShards) {
  for (Schedule& schedule : schedules_) {
    std::erase_if(schedule[3].sends, [](const StepMessage& message) { return message.shard == 0; });
    std::erase_if(schedule[3].receives,
                  [](const StepMessage& message) { return message.shard == 0; });
  }
  EXPECT_EQ(said(), "step 3, rank 0: decodes a shard twice, or not at all");
}

}  // namespace
}  // namespace tersor::testing
