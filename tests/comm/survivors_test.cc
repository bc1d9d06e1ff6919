// Agreement on the remaining ranks, with late ranks.
#include "comm/reducer/survivors.h"
#include "tests/comm/elastic.h"
#include "tests/support/errors.h"

#include <gtest/gtest.h>
#include <tersor/tersor.h>

#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <vector>

namespace tersor::testing {
namespace {

TEST(Survivors, LateRankIsNotifiedOfExclusion) {
  std::latch agreed(2), over(3);
  run_ranks(3, {}, [&](Transport& transport) {
    Survivors survivors(transport, 0);
    if (transport.rank() < 2) {
      const Survivors::Decision found = survivors.agree(3, Survivors::Cause::kOther);
      EXPECT_EQ(found.members, (std::vector<int>{0, 1}));
      EXPECT_EQ(found.lost, std::vector<int>{2});
      agreed.count_down();
    } else {
      agreed.wait();  // until ranks 0 and 1 remove rank 2
      test::expect_error<TransportError>([&] { survivors.agree(3, Survivors::Cause::kOther); },
                                         "rank 2 was left out by rank");
    }
    over.arrive_and_wait();
  });
}

// A fast rank votes in the next agreement while slow ranks are in the current agreement.
TEST(Survivors, VotesOfNextAgreementAreKept) {
  run_ranks(4, {}, [&](Transport& transport) {
    Survivors survivors(transport, 0);
    for (std::uint32_t step = 1; step < 200; ++step) {
      const Survivors::Decision found = survivors.agree(
          step, transport.rank() == 1 ? Survivors::Cause::kTimeout : Survivors::Cause::kOther);
      ASSERT_EQ(found.members, (std::vector<int>{0, 1, 2, 3}));
      ASSERT_EQ(found.steps, step);
      ASSERT_TRUE(found.is_repeat);
    }
  });
}

TEST(Survivors, StepIsRepeatedOnlyAfterTimeoutsAndThreeTimes) {
  run_ranks(2, {}, [&](Transport& transport) {
    Survivors survivors(transport, 0);
    const auto is_repeat = [&](std::uint32_t step, Survivors::Cause cause) {
      return survivors.agree(step, cause).is_repeat;
    };
    EXPECT_FALSE(is_repeat(1, Survivors::Cause::kOther));
    for (std::uint32_t step = 2; step < 4; ++step) {
      for (int repeat = 0; repeat < 3; ++repeat)
        EXPECT_TRUE(is_repeat(step, Survivors::Cause::kTimeout));
      EXPECT_FALSE(is_repeat(step, Survivors::Cause::kTimeout));
    }
  });
}

/// Runs a step with a late trainer on one rank. Expects the agreement of all ranks to repeat the
/// step.
void be_late(Training& run, int step, std::latch& agreed) {
  const bool is_late = run.rank == kVictim;
  if (is_late) agreed.wait();
  const RanksLostError lost = expect_lost([&] { run.step(step); });
  EXPECT_EQ(lost.members(), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(lost.last_step(), static_cast<std::uint32_t>(step));
  EXPECT_NE(std::string(lost.what()).find("a rank was late"), std::string::npos) << lost.what();
  if (!is_late) agreed.count_down();
  run.reducer.resume();
}

// All gradients arrive exactly once.
TEST(Elastic, StepWithLateRankIsRepeated) {
  constexpr int kSteps = 4;
  std::latch agreed(kElasticRanks - 1);
  run_mortal([&](Transport& transport) {
    ReducerOptions options = elastic();
    options.reduction = Reduction::kSum;
    options.timeout = std::chrono::milliseconds(2'000);
    Training run(transport, options);
    std::vector<double> rest(kCount);
    for (int step = 0; step < kSteps; ++step) {
      if (step == 2) be_late(run, step, agreed);
      const Values& sum = run.step(step);
      for (int rank = 0; rank < kElasticRanks; ++rank) add(rest, given(step, rank));
      for (std::size_t i = 0; i < kCount; ++i) rest[i] -= sum[i];
    }
    EXPECT_EQ(run.reducer.transport().ranks(), kElasticRanks);
    EXPECT_EQ(run.reducer.statistics().steps, static_cast<std::uint64_t>(kSteps));
    const std::vector<double> residuals = drain(run);
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_NEAR(residuals[i], rest[i], 2e-3) << i;
  });
}

TEST(Elastic, RankLateInOneStepForFourTimesEndsTheTraining) {
  std::vector<std::unique_ptr<std::latch>> agreed;
  for (int i = 0; i < 4; ++i) agreed.push_back(std::make_unique<std::latch>(kElasticRanks - 1));
  run_mortal([&](Transport& transport) {
    ReducerOptions options = elastic();
    options.timeout = std::chrono::milliseconds(1'500);
    Training run(transport, options);
    run.step(0);
    for (int i = 0; i < 3; ++i) be_late(run, 1, *agreed[static_cast<std::size_t>(i)]);
    if (run.rank == kVictim) agreed[3]->wait();
    try {
      run.step(1);
      ADD_FAILURE() << "the step ended";
    } catch (const RanksLostError& error) {
      ADD_FAILURE() << error.what();
    } catch (const TransportError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 2"), std::string::npos) << error.what();
    }
    if (run.rank != kVictim) agreed[3]->count_down();
  });
}

}  // namespace
}  // namespace tersor::testing
