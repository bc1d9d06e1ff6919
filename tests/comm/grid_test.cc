// allreduce on grids: the same bits on all ranks for all dimensions, one more quantization per
// dimension, and no lost values.
#include "comm/collectives/grid.h"
#include "comm/collectives/hosts.h"
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace tersor::testing {
namespace {

struct GridCase {
  std::vector<int> dims;
  int ranks;
};

// As many ranks as grid positions, and more.
const GridCase kGridCases[] = {
    {{2, 2}, 4}, {{3, 2}, 6}, {{3, 3}, 10}, {{2, 3, 2}, 12}, {{3, 3, 2}, 20}};

std::string name_of(const GridCase& one) {
  return ::testing::PrintToString(one.dims) + " for " + std::to_string(one.ranks);
}

std::vector<Values> reduce(const std::vector<Values>& inputs, const CollectiveOptions& options) {
  return on_ranks(inputs, [&](Transport& transport, Values& gradient) {
    allreduce(transport, gradient, options);
  });
}

CollectiveOptions two_shot(const std::string& codec, const std::vector<int>& dims) {
  return {.codec = codec, .algorithm = Algorithm::kTwoShot, .dims = dims};
}

TEST(Grid, AllRanksGetIdenticalBitsNearTheSum) {
  const std::pair<std::string, double> cases[] = {
      {"none", 1e-12}, {"bf16", 2e-5},           {"int8:rounding=stochastic", 1.2e-3},
      {"int4", 0.1},   {"hadamard:bits=4", 0.2}, {"blocktopk:density=0.2,values=bf16", 1.0}};
  for (const GridCase& one : kGridCases)
    for (const auto& [codec, allowed] : cases)
      for (const std::size_t count : {0ul, 1ul, 513ul, 4099ul, 70'003ul}) {
        SCOPED_TRACE(codec + " " + name_of(one) + ", " + std::to_string(count));
        const auto inputs = gradients(one.ranks, count);
        CollectiveOptions options = two_shot(codec, one.dims);
        options.parameter = 7;
        const auto outputs = reduce(inputs, options);
        for (const Values& output : outputs) ASSERT_EQ(output, outputs.front());
        if (count > 1) EXPECT_LE(squared_error(outputs.front(), exact_sum(inputs)), allowed);
        options.chunk_count = 5000;
        EXPECT_EQ(reduce(inputs, options).front(), outputs.front());
      }
}

TEST(Grid, SingleDimensionMatchesDirectAlgorithm) {
  const auto inputs = gradients(5, 30'001);
  EXPECT_EQ(reduce(inputs, two_shot("int8", {5})), reduce(inputs, two_shot("int8", {})));
}

// One-shot quantizes once. Direct two-shot quantizes twice, and once more per additional dimension.
TEST(Grid, ErrorGrowsAsSquareRootOfDimensionsPlusOne) {
  const auto inputs = gradients(64, 1 << 17, 5);
  const auto sum = exact_sum(inputs);
  const auto error = [&](const CollectiveOptions& options) {
    return std::sqrt(squared_error(reduce(inputs, options).front(), sum));
  };
  const double once = error({.codec = "int4", .algorithm = Algorithm::kOneShot});
  for (const std::vector<int>& dims : {std::vector{64}, {8, 8}, {4, 4, 4}}) {
    const double wanted = std::sqrt(1.0 + static_cast<double>(dims.size()));
    EXPECT_NEAR(error(two_shot("int4", dims)) / once, wanted, 0.02 * wanted) << dims.size();
  }
}

/// Adds a rank's residuals of each value.
void add_residuals(std::vector<double>& sum, const Values& sender, const Values& owner,
                   const OwnedRanges& owned) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += sender[i];
  auto next = owner.begin();
  for (const Range& range : owned.stages)
    for (std::size_t i = 0; i < range.count; ++i) sum[range.first + i] += *next++;
  EXPECT_EQ(next, owner.end());
}

void expect_nothing_lost(const std::string& codec, const GridCase& one, std::size_t count) {
  constexpr int kSteps = 5;
  constexpr std::uint32_t kParameter = 3;
  const auto all = static_cast<std::size_t>(one.ranks);
  const std::size_t unit = make_codec(codec)->traits().unit;
  std::vector<double> found(count, 0.0), wanted(count, 0.0);
  std::vector<Values> senders(all, Values(count)), owners(all);
  std::vector<StateWords> words(all);
  for (int rank = 0; rank < one.ranks; ++rank)
    owners[static_cast<std::size_t>(rank)].resize(
        owned_count(count, rank, one.ranks, kParameter, unit, one.dims));
  for (int step = 0; step < kSteps; ++step) {
    const auto inputs = gradients(one.ranks, count, 50 + static_cast<std::uint64_t>(step));
    const auto outputs = on_ranks(inputs, [&](Transport& transport, Values& gradient) {
      const auto rank = static_cast<std::size_t>(transport.rank());
      const CollectiveState state{senders[rank], owners[rank], &words[rank]};
      CollectiveOptions options = two_shot(codec, one.dims);
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
  const Grid grid(one.dims, one.ranks);
  for (int rank = 0; rank < one.ranks; ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    add_residuals(found, senders[i], owners[i], grid.owned({0, count}, rank, kParameter, unit));
  }
  for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(found[i], wanted[i], 5e-5 * one.ranks) << i;
}

TEST(GridFeedback, ResultsPlusResidualsEqualSumOfInputs) {
  for (const GridCase& one : kGridCases)
    for (const std::string codec : {"int4+ef", "hadamard:bits=1+ef", "blocktopk:density=0.02+ef"}) {
      SCOPED_TRACE(codec + " " + name_of(one));
      expect_nothing_lost(codec, one, 20'001);
    }
}

TEST(GridMessages, CountIsTwiceThePeersOfAllDimensions) {
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

/// The additional traffic of a group's owners for ranks without a part, relative to the other
/// traffic.
double extra_share(const Grid& grid) {
  const int width = grid.digits().front();
  return static_cast<double>(grid.subgroup(0, 0).size()) / width - 1;
}

TEST(StandardGrid, HasFewestDimensionsOfAtMost32Ranks) {
  const std::pair<int, std::vector<int>> wanted[] = {
      {1, {1}},         {32, {32}},           {36, {6, 6}},        {62, {31, 2}},
      {64, {8, 8}},     {128, {16, 8}},       {256, {16, 16}},     {1000, {32, 31}},
      {1024, {32, 32}}, {2000, {20, 10, 10}}, {4096, {16, 16, 16}}};
  for (const auto& [ranks, digits] : wanted) {
    const Grid grid = Grid::standard(ranks);
    EXPECT_EQ(std::vector(grid.digits().begin(), grid.digits().end()), digits) << ranks;
  }
}

TEST(StandardGrid, AddsAtMostSixPercentTraffic) {
  for (int ranks = 36; ranks < 1000; ++ranks) {
    const Grid grid = Grid::standard(ranks);
    EXPECT_LE(extra_share(grid), 0.06) << ranks;
    EXPECT_LE(std::accumulate(grid.digits().begin(), grid.digits().end(), 0), 64) << ranks;
  }
}

TEST(ErrorGrowth, BoundsTheDimensions) {
  const auto inputs = gradients(40, 30'001);
  CollectiveOptions options = two_shot("int8", {});
  const auto standard = reduce(inputs, options);
  EXPECT_EQ(standard, reduce(inputs, two_shot("int8", {8, 5})));
  options.error_growth = 1.5;  // two dimensions
  EXPECT_EQ(reduce(inputs, options), standard);
  options.error_growth = 1.49;
  EXPECT_EQ(reduce(inputs, options), reduce(inputs, two_shot("int8", {40})));
  const int direct[] = {40};
  EXPECT_EQ(owned_count(30'001, 1, 40, 0, 512, {}, 1), owned_count(30'001, 1, 40, 0, 512, direct));
  EXPECT_EQ(Grid::standard(4096, 1.5).dimensions(), 2);
  EXPECT_EQ(Grid::standard(4096, 2).dimensions(), 3);
  EXPECT_EQ(Grid::standard(4096, HUGE_VAL).dimensions(), 3);
}

// The hosts of a hierarchy also exchange on a grid.
TEST(ErrorGrowth, BoundsTheDimensionsOfTheHostGrid) {
  std::vector<int> hosts;
  for (int rank = 0; rank < 80; ++rank) hosts.push_back(rank / 2);
  EXPECT_EQ(HostGroups(hosts, 80).grid().dimensions(), 2);
  EXPECT_EQ(HostGroups(hosts, 80, 1).grid().dimensions(), 1);
}

std::string refused(const CollectiveOptions& options, int ranks) {
  std::vector<Values> gradients(static_cast<std::size_t>(ranks), Values(1000, 1.0f));
  const auto errors = errors_of<InvalidArgumentError>(ranks, [&](Transport& transport) {
    allreduce(transport, gradients[static_cast<std::size_t>(transport.rank())], options);
  });
  for (const Values& gradient : gradients) EXPECT_EQ(gradient, Values(1000, 1.0f));
  return errors[0];
}

std::string refused(const std::vector<int>& dims, int ranks) {
  return refused(two_shot("int8", dims), ranks);
}

TEST(GridErrors, RejectDimsBeyondErrorGrowthAndInvalidBounds) {
  const std::vector<int> dims = {2, 2};
  CollectiveOptions options = two_shot("int8", dims);
  options.error_growth = 1.25;
  EXPECT_EQ(refused(options, 4),
            "dims are 2 x 2, with 3 quantisations instead of the 2 of one dimension: give fewer "
            "dimensions, or an error_growth above 1.250000");
  for (const double nonsense : {0.99, -1.0, std::nan("")}) {
    options = {.error_growth = nonsense};
    EXPECT_NE(refused(options, 2).find("give at least 1, the growth of one dimension"),
              std::string::npos);
    run_ranks(2, {}, [&](Transport& transport) {
      EXPECT_THROW(GradientReducer(transport, {.error_growth = nonsense}), InvalidArgumentError);
    });
  }
}

TEST(GridErrors, ReportReasonForInvalidDims) {
  EXPECT_EQ(
      refused({2, 2}, 5),
      "dims are 2 x 2: give dimensions with a product of at most 5, the number of ranks, and at "
      "least 9/10 of it");
  EXPECT_EQ(
      refused({3, 2}, 4),
      "dims are 3 x 2: give dimensions with a product of at most 4, the number of ranks, and at "
      "least 9/10 of it");
  EXPECT_EQ(refused({4, 1}, 4),
            "dims are 4 x 1: give dimensions from 2 to the number of ranks, 4, not 1");
  EXPECT_EQ(refused({2, 2, 1, 1}, 4), "dims has 4 dimensions: give 1 to 3");
}

TEST(GridErrors, GridMismatchIsDetected) {
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
}  // namespace tersor::testing
