// allreduce on grids: the same bits on all ranks whatever the dimensions, one quantisation more for
// each, and nothing lost.
#include "comm/collectives/grid.h"
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <string>

namespace tersor {
namespace {

using testing::exact_sum;
using testing::gradients;
using testing::on_ranks;
using testing::squared_error;
using testing::Values;

struct World {
  std::vector<int> dims;
  int ranks;
};

// As many ranks as places, and more.
const World kWorlds[] = {{{2, 2}, 4}, {{3, 2}, 6}, {{3, 3}, 10}, {{2, 3, 2}, 12}, {{3, 3, 2}, 20}};

std::string name_of(const World& world) {
  return ::testing::PrintToString(world.dims) + " for " + std::to_string(world.ranks);
}

std::vector<Values> reduce(const std::vector<Values>& inputs, const CollectiveOptions& options) {
  return on_ranks(inputs, [&](Transport& transport, Values& gradient) {
    allreduce(transport, gradient, options);
  });
}

CollectiveOptions two_shot(const std::string& codec, const std::vector<int>& dims) {
  return {.codec = codec, .algorithm = Algorithm::kTwoShot, .dims = dims};
}

TEST(Grid, EndsWithTheSameBitsNearTheSum) {
  const std::pair<std::string, double> ways[] = {
      {"none", 1e-12}, {"bf16", 2e-5},           {"int8:rounding=stochastic", 1.2e-3},
      {"int4", 0.1},   {"hadamard:bits=4", 0.2}, {"blocktopk:density=0.2,values=bf16", 1.0}};
  for (const World& world : kWorlds)
    for (const auto& [codec, allowed] : ways)
      for (const std::size_t count : {0ul, 1ul, 513ul, 4099ul, 70'003ul}) {
        SCOPED_TRACE(codec + " " + name_of(world) + ", " + std::to_string(count));
        const auto inputs = gradients(world.ranks, count);
        CollectiveOptions options = two_shot(codec, world.dims);
        options.parameter = 7;
        const auto outputs = reduce(inputs, options);
        for (const Values& output : outputs) ASSERT_EQ(output, outputs.front());
        if (count > 1) EXPECT_LE(squared_error(outputs.front(), exact_sum(inputs)), allowed);
        options.chunk_count = 5000;
        EXPECT_EQ(reduce(inputs, options).front(), outputs.front());
      }
}

TEST(Grid, OfOneDimensionIsTheDirectWay) {
  const auto inputs = gradients(5, 30'001);
  EXPECT_EQ(reduce(inputs, two_shot("int8", {5})), reduce(inputs, two_shot("int8", {})));
}

// epsilon a quantisation: 2 epsilon directly, one more for each further dimension.
TEST(Grid, TheErrorGrowsAsTheRootOfOneAndTheDimensions) {
  const auto inputs = gradients(64, 1 << 17, 5);
  const auto sum = exact_sum(inputs);
  const auto error = [&](const std::vector<int>& dims) {
    return std::sqrt(squared_error(reduce(inputs, two_shot("int4", dims)).front(), sum));
  };
  const double direct = error({64}) / std::sqrt(2.0);
  EXPECT_NEAR(error({8, 8}) / direct, std::sqrt(3.0), 0.02 * std::sqrt(3.0));
  EXPECT_NEAR(error({4, 4, 4}) / direct, std::sqrt(4.0), 0.02 * std::sqrt(4.0));
}

/// Adds what a rank's residuals hold of each value.
void add_residuals(std::vector<double>& sum, const Values& sender, const Values& owner,
                   const OwnedRanges& owned) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += sender[i];
  auto next = owner.begin();
  for (const Range& range : owned.stages)
    for (std::size_t i = 0; i < range.count; ++i) sum[range.first + i] += *next++;
  EXPECT_EQ(next, owner.end());
}

void expect_nothing_lost(const std::string& codec, const World& world, std::size_t count) {
  constexpr int kSteps = 5;
  constexpr std::uint32_t kParameter = 3;
  const auto all = static_cast<std::size_t>(world.ranks);
  const std::size_t unit = make_codec(codec)->traits().unit;
  std::vector<double> found(count, 0.0), wanted(count, 0.0);
  std::vector<Values> senders(all, Values(count)), owners(all);
  std::vector<StateWords> words(all);
  for (int rank = 0; rank < world.ranks; ++rank)
    owners[static_cast<std::size_t>(rank)].resize(
        owned_count(count, rank, world.ranks, kParameter, unit, world.dims));
  for (int step = 0; step < kSteps; ++step) {
    const auto inputs = gradients(world.ranks, count, 50 + static_cast<std::uint64_t>(step));
    const auto outputs = on_ranks(inputs, [&](Transport& transport, Values& gradient) {
      const auto rank = static_cast<std::size_t>(transport.rank());
      const CollectiveState state{senders[rank], owners[rank], &words[rank]};
      CollectiveOptions options = two_shot(codec, world.dims);
      options.state = &state;
      options.parameter = kParameter;
      allreduce(transport, gradient, options);
    });
    const auto sum = exact_sum(inputs);
    for (std::size_t i = 0; i < count; ++i) {
      wanted[i] += sum[i];
      found[i] += outputs.front()[i];
    }
  }
  const Grid grid(world.dims, world.ranks);
  for (int rank = 0; rank < world.ranks; ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    add_residuals(found, senders[i], owners[i], grid.owned({0, count}, rank, kParameter, unit));
  }
  for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(found[i], wanted[i], 5e-5 * world.ranks) << i;
}

TEST(GridFeedback, WhatIsNotSentIsKeptInSomeStage) {
  for (const World& world : kWorlds)
    for (const std::string codec : {"int4+ef", "hadamard:bits=1+ef", "blocktopk:density=0.02+ef"}) {
      SCOPED_TRACE(codec + " " + name_of(world));
      expect_nothing_lost(codec, world, 20'001);
    }
}

TEST(GridMessages, AreTheSumOfTheDimensions) {
  for (const std::vector<int>& dims : {std::vector{64}, std::vector{8, 8}, std::vector{4, 4, 4}})
    run_ranks(64, {}, [&](Transport& transport) {
      Values gradient(1 << 15, 1.0f);
      CollectiveOptions options = two_shot("int8", dims);
      options.chunk_count = 1 << 20;
      allreduce(transport, gradient, options);
      std::size_t messages = 0;
      for (const int digit : dims) messages += 2 * static_cast<std::size_t>(digit - 1);
      EXPECT_EQ(transport.counters().sent_messages, messages);
    });
}

std::string refused(const std::vector<int>& dims, int ranks) {
  std::string said;
  run_ranks(ranks, {}, [&](Transport& transport) {
    Values gradient(1000, 1.0f);
    try {
      allreduce(transport, gradient, two_shot("int8", dims));
    } catch (const InvalidArgument& error) {
      if (transport.rank() == 0) said = error.what();
    }
    for (const float value : gradient) ASSERT_EQ(value, 1.0f);
  });
  return said;
}

TEST(GridErrors, SayWhatDoesNotFit) {
  EXPECT_EQ(refused({2, 2}, 5),
            "a grid of 2 x 2 does not fit 5 ranks: at most all of them, and at least 9 in 10");
  EXPECT_EQ(refused({3, 2}, 4),
            "a grid of 3 x 2 does not fit 4 ranks: at most all of them, and at least 9 in 10");
  EXPECT_EQ(refused({4, 1}, 4),
            "a grid of 4 x 1 has a dimension of 1: of 4 ranks it may have 2 to all");
  EXPECT_EQ(refused({2, 2, 1, 1}, 4), "a grid has 1 to 3 dimensions, not 4");
}

TEST(GridErrors, RanksOfOtherGridsMeet) {
  EXPECT_THROW(run_ranks(4, {},
                         [](Transport& transport) {
                           Values gradient(1000, 1.0f);
                           const std::vector<int> dims =
                               transport.rank() == 0 ? std::vector{4} : std::vector{2, 2};
                           allreduce(transport, gradient, two_shot("int8", dims));
                         }),
               TransportError);
}

}  // namespace
}  // namespace tersor
