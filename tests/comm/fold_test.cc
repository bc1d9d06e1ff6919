// Folded residuals: the sum over all ranks equals the portable state for every assignment of
// owners.
#include "comm/collectives/fold.h"
#include "comm/reducer/state.h"
#include "tests/comm/training.h"

#include <gtest/gtest.h>

#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace tersor::testing {
namespace {

constexpr int kFoldingRanks = 4;

constexpr const char* kSpecs[] = {"int8+ef", "int8:result=hadamard:bits=1+ef"};

ParameterFeedback feedback_of(const Grid& grid, int rank) {
  const std::shared_ptr<const Codec> codec = make_codec("int8+ef");
  return {.owned = grid.owned({0, kCount}, rank, 0, unit_of(*codec, kCount))};
}

void add_to(std::vector<double>& sums, std::span<const float> values) {
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
}

TEST(Fold, AddsUpToThePortableState) {
  for (const std::string spec : kSpecs)
    for (const std::vector<int>& dims : {std::vector<int>{}, std::vector<int>{2, 2}}) {
      SCOPED_TRACE(spec);
      std::vector<double> sums(kCount), portable(kCount), parts(kCount);
      std::mutex mutex;
      run_ranks(kFoldingRanks, {}, [&](Transport& transport) {
        Training run(transport, {.codec = spec, .reduction = Reduction::kSum, .dims = dims});
        for (int step = 0; step < 3; ++step) run.step(step);
        const auto own = read_state(run.reducer.save_state()).parameters.at(0);
        const auto all = read_state(run.reducer.save_portable_state()).parameters.at(0);
        EXPECT_FALSE(own.owner.empty());
        const ParameterFeedback feedback = feedback_of(Grid::of(dims, kFoldingRanks), run.rank);
        const auto whole = folded({own.residual, own.owner}, feedback, ResidualScales{}, kCount);
        const std::lock_guard lock(mutex);
        add_to(sums, whole);
        if (run.rank == 0) add_to(portable, all.residual);
        add_to(parts, residual_part(whole, feedback, kCount));
      });
      EXPECT_EQ(parts, sums);  // each rank encodes every value
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_NEAR(sums[i], portable[i], 1e-5) << i;
    }
}

TEST(Fold, ScalesEachStageByItsDivisor) {
  ParameterFeedback feedback = feedback_of(Grid(kFoldingRanks), 0);
  feedback.owned.stages = {Range{4, 4}, Range{6, 2}, Range{7, 1}};
  const std::vector<float> owner = {1, 2, 3, 4, 10, 20, 100};
  std::vector<float> into(6, 1.0f);  // values 2 to 7
  fold_owner(owner, feedback, {.sender = 2, .owner = {2, 4, 8}}, {into, 2, 2.0f});
  EXPECT_EQ(into, (std::vector<float>{1, 1, 2, 3, 1 + 3 + 2 * 10, 1 + 4 + 2 * 20 + 4 * 100}));
}

}  // namespace
}  // namespace tersor::testing
