// The host steps of small sums and gathers, for all ranks at once, with symbolic expressions as
// values.
#include "comm/transport/host/steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tersor::host {
namespace {

using Items = std::vector<std::string>;  // an expression per item

/// Executes the steps of all ranks until no rank can continue. Messages between two ranks are
/// received in the order of sending.
class StepsWalk {
 public:
  StepsWalk(std::vector<HostSteps> steps, std::vector<Items> items)
      : steps_(std::move(steps)),
        items_(std::move(items)),
        at_(steps_.size()),
        sent_(steps_.size()) {}

  /// Returns the reason for an early end, or "" if all steps were executed and no message remains.
  std::string run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < steps_.size(); ++rank) moved |= advance(rank);
    }
    for (std::size_t rank = 0; rank < steps_.size(); ++rank)
      if (at_[rank] != steps_[rank].size()) return "rank " + std::to_string(rank) + " waits";
    for (const auto& [key, queue] : queues_)
      if (!queue.empty()) return "a message is never taken";
    return "";
  }

  const Items& items(std::size_t rank) const { return items_[rank]; }
  std::size_t messages(std::size_t rank) const { return sent_[rank].first; }
  std::size_t sent_items(std::size_t rank) const { return sent_[rank].second; }

 private:
  using Key = std::pair<std::size_t, std::size_t>;  // from, to

  bool advance(std::size_t rank) {
    if (at_[rank] == steps_[rank].size()) return false;
    const HostStep& step = steps_[rank][at_[rank]];
    bool moved = false;
    if (step.to != HostStep::kNoRank && posted_.insert({rank, at_[rank]}).second) {
      send(rank, step);
      moved = true;
    }
    if (step.from != HostStep::kNoRank && !take(rank, step)) return moved;
    ++at_[rank];
    return true;
  }

  void send(std::size_t rank, const HostStep& step) {
    const auto first = items_[rank].begin() + static_cast<std::ptrdiff_t>(step.sent.first);
    queues_[{rank, static_cast<std::size_t>(step.to)}].emplace_back(
        first, first + static_cast<std::ptrdiff_t>(step.sent.count));
    ++sent_[rank].first;
    sent_[rank].second += step.sent.count;
  }

  bool take(std::size_t rank, const HostStep& step) {
    const auto from = static_cast<std::size_t>(step.from);
    auto& queue = queues_[{from, rank}];
    if (queue.empty()) return false;
    const Items came = queue.front();
    queue.pop_front();
    EXPECT_EQ(came.size(), step.received.count);
    for (std::size_t i = 0; i < came.size(); ++i) {
      std::string& item = items_[rank][step.received.first + i];
      // The lower rank's operand comes first on both ranks.
      if (!step.combines)
        item = came[i];
      else
        item = from < rank ? "(" + came[i] + "+" + item + ")" : "(" + item + "+" + came[i] + ")";
    }
    return true;
  }

  std::vector<HostSteps> steps_;
  std::vector<Items> items_;
  std::vector<std::size_t> at_;  // index of the next step, by rank
  std::set<std::pair<std::size_t, std::size_t>> posted_;
  std::map<Key, std::deque<Items>> queues_;
  std::vector<std::pair<std::size_t, std::size_t>> sent_;  // messages and items, by rank
};

std::string name(int rank) { return "x" + std::to_string(rank); }

using Algorithm = HostSteps (*)(int rank, int ranks, std::size_t count);

StepsWalk walk_of_sum(Algorithm algorithm, int ranks, std::size_t count) {
  std::vector<HostSteps> steps;
  std::vector<Items> items;
  for (int rank = 0; rank < ranks; ++rank) {
    steps.push_back(algorithm(rank, ranks, count));
    items.emplace_back(count, name(rank));
  }
  return {std::move(steps), std::move(items)};
}

/// The sum defined in steps.h, computed top-down instead.
std::string sum_of(int first, int partners, int ranks, int all_partners) {
  if (partners == 1) {
    const int beyond = first + all_partners;
    return beyond < ranks ? "(" + name(first) + "+" + name(beyond) + ")" : name(first);
  }
  return "(" + sum_of(first, partners / 2, ranks, all_partners) + "+" +
         sum_of(first + partners / 2, partners / 2, ranks, all_partners) + ")";
}

const std::vector<int> kRanks = {1,  2,  3,  4,  5,  6,  7,  8,  9,  12,
                                 15, 16, 17, 31, 32, 33, 48, 64, 100};

TEST(HostSteps, AllRanksComputeTheSameSum) {
  for (const Algorithm algorithm : {&recursive_doubling, &halving_doubling})
    for (const int ranks : kRanks)
      for (const std::size_t count : {0u, 1u, 5u, 64u, 1001u}) {
        if (count > 64 && ranks > 17) continue;
        SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << count << " values");
        StepsWalk walk = walk_of_sum(algorithm, ranks, count);
        ASSERT_EQ(walk.run(), "");
        const auto partners = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
        const Items wanted(count, sum_of(0, partners, ranks, partners));
        for (int rank = 0; rank < ranks; ++rank)
          ASSERT_EQ(walk.items(static_cast<std::size_t>(rank)), wanted) << rank;
      }
}

TEST(HostSteps, MessageAndValueCountsMatchFormulas) {
  for (const int ranks : {2, 4, 8, 16, 64}) {
    const auto steps = static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(ranks)));
    const std::size_t count = 4096;
    StepsWalk doubling = walk_of_sum(&recursive_doubling, ranks, count);
    StepsWalk halving = walk_of_sum(&halving_doubling, ranks, count);
    ASSERT_EQ(doubling.run() + halving.run(), "");
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
      EXPECT_EQ(doubling.messages(rank), steps);
      EXPECT_EQ(doubling.sent_items(rank), steps * count);
      EXPECT_EQ(halving.messages(rank), 2 * steps);
      EXPECT_EQ(halving.sent_items(rank), 2 * (count - count / static_cast<std::size_t>(ranks)));
    }
  }
}

TEST(HostSteps, RoundsGatherRecordsOfAllRanks) {
  for (const int ranks : kRanks) {
    std::vector<HostSteps> steps;
    std::vector<Items> items;
    for (int rank = 0; rank < ranks; ++rank) {
      steps.push_back(gather_in_rounds(rank, ranks));
      items.emplace_back(static_cast<std::size_t>(ranks));
      items.back().front() = name(rank);
    }
    StepsWalk walk(std::move(steps), std::move(items));
    ASSERT_EQ(walk.run(), "") << ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      EXPECT_EQ(walk.messages(at), std::bit_width(static_cast<unsigned>(ranks - 1)));
      for (int distance = 0; distance < ranks; ++distance)
        ASSERT_EQ(walk.items(at)[static_cast<std::size_t>(distance)],
                  name((rank + distance) % ranks));
    }
  }
}

// Ranks with different algorithms detect the mismatch at once: an odd rank always receives from the
// previous rank first.
TEST(HostSteps, FirstStepPairsNeighbors) {
  for (const int ranks : {2, 4, 8, 64})
    for (int rank = 0; rank < ranks; ++rank)
      for (const Algorithm algorithm : {&recursive_doubling, &halving_doubling}) {
        const HostStep first = algorithm(rank, ranks, 100).front();
        EXPECT_EQ(first.to, rank ^ 1);
        EXPECT_EQ(first.from, rank ^ 1);
      }
}

TEST(HostSteps, SelectsAlgorithmByBytesAndRanks) {
  const std::size_t kib = 1024;
  EXPECT_EQ(sum_algorithm(4, false, 8 * kib), SumAlgorithm::kDoubling);
  EXPECT_EQ(sum_algorithm(4, false, 8 * kib + 1), SumAlgorithm::kHalving);
  EXPECT_EQ(sum_algorithm(4, true, 32 * kib), SumAlgorithm::kDoubling);
  EXPECT_EQ(sum_algorithm(4, false, 64 * kib), SumAlgorithm::kHalving);
  EXPECT_EQ(sum_algorithm(4, true, 64 * kib + 1), SumAlgorithm::kRing);
  EXPECT_EQ(sum_algorithm(2, false, 64 * kib), SumAlgorithm::kDoubling);
  EXPECT_EQ(sum_algorithm(3, false, 16 * kib), SumAlgorithm::kDirect);
  EXPECT_EQ(sum_algorithm(3, false, 16 * kib + 1), SumAlgorithm::kRing);
  EXPECT_EQ(sum_algorithm(9, true, 8 * kib), SumAlgorithm::kDirect);
  EXPECT_EQ(sum_algorithm(9, true, 8 * kib + 1), SumAlgorithm::kRing);
}

}  // namespace
}  // namespace tersor::host
