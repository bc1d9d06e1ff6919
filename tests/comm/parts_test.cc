// The parts of a parameter: complete, cut at units, and with rotating owners.
#include "comm/collectives/parts.h"

#include <tersor/collectives.h>

#include <gtest/gtest.h>

#include <vector>

namespace tersor {
namespace {

TEST(Parts, CoverEveryValueOnce) {
  for (const std::size_t count : {0ul, 1ul, 511ul, 512ul, 513ul, 4096ul, 1000003ul})
    for (const int parts : {1, 2, 3, 4, 8, 64})
      for (const std::size_t unit : {kUnit, std::size_t{4096}}) {
        std::size_t next = 0;
        for (int part = 0; part < parts; ++part) {
          const Range range = part_range(count, part, parts, unit);
          EXPECT_EQ(range.first, next);
          EXPECT_TRUE(range.first % unit == 0 || range.first == count);
          next = range.first + range.count;
        }
        EXPECT_EQ(next, count) << count << " values in " << parts << " parts";
      }
}

TEST(Parts, ShardsAreWholeUnits) {
  EXPECT_EQ(shard_length(10'000, 4), 2560u);
  EXPECT_EQ(shard_length(10'000, 4, 4096), 4096u);
  EXPECT_EQ(shard_length(1 << 20, 4, 4096), std::size_t{1} << 18);
  EXPECT_EQ(shard_length(1 << 20, 64, 512, 64, 32 * 512), 16u * 512);  // two chunks on a grid
  EXPECT_EQ(shard_length(1 << 20, 64, 512, 64, 31 * 512), 32u * 512);
}

TEST(Parts, OwnedCountDependsOnUnit) {
  EXPECT_EQ(owned_count(5000, 0, 2), 2560u);
  EXPECT_EQ(owned_count(5000, 0, 2, 0, 4096), 4096u);
  EXPECT_EQ(owned_count(5000, 1, 2, 0, 4096), 904u);
  const std::vector<int> hosts = {0, 0, 1, 1};
  EXPECT_EQ(encoded_count(20'000, 0, hosts, 0, 4096), 8192u);
  EXPECT_EQ(encoded_count(20'000, 3, hosts, 0, 4096), 11'808u);
  EXPECT_EQ(owned_count(20'000, 3, hosts, 0, 4096), 7712u);  // the second part of shard 1
}

TEST(Parts, DifferByAtMostAUnit) {
  std::size_t least = 1000003, most = 0;
  for (int part = 0; part < 7; ++part) {
    least = std::min(least, part_range(1000003, part, 7).count);
    most = std::max(most, part_range(1000003, part, 7).count);
  }
  EXPECT_LE(most - least, kUnit);
}

TEST(Parts, OwnersRotateWithTheParameter) {
  for (std::uint32_t parameter = 0; parameter < 9; ++parameter)
    for (int rank = 0; rank < 4; ++rank) {
      const int part = owned_part(rank, 4, parameter);
      EXPECT_EQ((part + static_cast<int>(parameter)) % 4, rank);
    }
  EXPECT_EQ(owned_count(512, 0, 4, 0) + owned_count(512, 1, 4, 0) + owned_count(512, 2, 4, 0) +
                owned_count(512, 3, 4, 0),
            512u);
}

TEST(Parts, RejectsInvalidRank) {
  EXPECT_THROW(owned_count(10, 4, 4), InvalidArgumentError);
  EXPECT_THROW(owned_count(10, -1, 4), InvalidArgumentError);
}

}  // namespace
}  // namespace tersor
