// Elastic reducers: committed and discarded steps after a loss, residuals owed afterwards, and
// refused calls. tests/faults/ loses ranks at arbitrary messages.
#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <mutex>
#include <string>
#include <vector>

#include "comm/collectives/fold.h"
#include "comm/reducer/state.h"
#include "tests/comm/elastic.h"

namespace tersor::testing {
namespace {

/// Two steps, then the victims leave. The other ranks have the same steps.
RanksLostError lose(Training& run, const std::vector<int>& victims = {kVictim}) {
  for (int step = 0; step < 2; ++step) run.step(step);
  if (std::ranges::count(victims, run.rank) != 0) return {"", {}, 0};
  return expect_lost([&] { run.step(2); });
}

bool is_gone(const RanksLostError& lost) { return lost.members().empty(); }

TEST(Elastic, RemainingRanksContinueWithEqualResults) {
  std::mutex mutex;
  std::vector<Values> results;
  run_mortal([&](Transport& transport) {
    Training run(transport, elastic());
    const RanksLostError lost = lose(run);
    if (is_gone(lost)) return;
    EXPECT_EQ(lost.members(), (std::vector<int>{0, 1, 3}));
    EXPECT_EQ(lost.last_step(), 2u);
    run.reducer.resume();
    EXPECT_EQ(run.reducer.transport().ranks(), 3);
    EXPECT_EQ(run.reducer.transport().rank(), run.rank == 3 ? 2 : run.rank);
    for (int step = 2; step < 4; ++step) run.step(step);
    EXPECT_EQ(run.reducer.statistics().steps, 4u);
    EXPECT_NE(run.reducer.explain().find("rank 2 lost after step 2"), std::string::npos);
    const std::lock_guard lock(mutex);
    results.push_back(run.gradient);
  });
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

// The victim's message of the step has arrived. The other ranks cannot know the deliveries at the
// victim: without a vote, the step would be complete on the remaining ranks.
TEST(Elastic, StepPossiblyIncompleteOnLostRankIsDiscarded) {
  std::latch is_sent(1);
  run_mortal([&](Transport& transport) {
    ReducerOptions options = elastic();
    options.algorithm = Algorithm::kOneShot;
    options.progress = ProgressBy::kCaller;
    Training run(transport, options);
    for (int step = 0; step < 2; ++step) run.step(step);
    if (run.rank == kVictim) {
      run.reducer.ready("w");
      for (int i = 0; i < 10; ++i) run.reducer.progress();
      return is_sent.count_down();
    }
    is_sent.wait();
    EXPECT_EQ(expect_lost([&] { run.step(2); }).last_step(), 2u);
    EXPECT_EQ(run.reducer.statistics().steps, 2u);
  });
}

/// A rank's owed residual of all values, with one codec and a sum, on a grid of one dimension.
std::vector<float> owed_by(const GradientReducer& reducer, const Transport& transport) {
  const auto own = read_state(reducer.save_state()).parameters.at(0);
  const std::shared_ptr<const Codec> codec = make_codec("int8+ef");
  const ParameterFeedback feedback = {
      .owned =
          Grid(transport.ranks()).owned({0, kCount}, transport.rank(), 0, unit_of(*codec, kCount))};
  return folded({own.residual, own.owner}, feedback, ResidualScales{}, kCount);
}

TEST(Elastic, ResumePreservesResidualsOfRemainingRanks) {
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    std::vector<double> before(kCount), after(kCount);
    std::mutex mutex;
    run_mortal([&](Transport& transport) {
      ReducerOptions options = elastic();
      options.algorithm = algorithm;
      options.reduction = Reduction::kSum;
      Training run(transport, options);
      if (is_gone(lose(run))) return;
      const auto owed_before = owed_by(run.reducer, transport);
      run.reducer.resume();
      const auto owed_after = owed_by(run.reducer, run.reducer.transport());
      {
        const std::lock_guard lock(mutex);
        add(before, owed_before);
        add(after, owed_after);
      }
      run.step(2);
    });
    double energy = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      energy += before[i] * before[i];
      ASSERT_NEAR(after[i], before[i], 1e-5) << i;
    }
    EXPECT_GT(energy, 0.01);
  }
}

// Each rank keeps a part of its host's residual. The victim, the first rank of its host, keeps the
// first half. Nothing of the second half is lost: all of its gradients arrive eventually.
TEST(Elastic, HierarchicalResumePreservesRemainingResiduals) {
  const std::size_t half = 10'240;  // of kCount, rounded to the codec's units
  run_mortal(6, {.ranks_per_host = 2}, [&](Transport& transport) {
    ReducerOptions options = elastic();
    options.algorithm = Algorithm::kHierarchical;
    options.reduction = Reduction::kSum;
    Training run(transport, options);
    std::vector<double> owed(kCount);
    for (int step = 0; step < 2; ++step) {
      const Values& arrived = run.step(step);
      for (int rank = 0; rank < 6; ++rank) add(owed, given(step, rank));
      for (std::size_t i = 0; i < kCount; ++i) owed[i] -= arrived[i];
    }
    if (run.rank == kVictim) return;
    expect_lost([&] { run.step(2); });
    run.reducer.resume();
    EXPECT_EQ(run.reducer.transport().hosts(), (Hosts{0, 0, 1, 2, 2}));
    const std::vector<double> rest = drain(run);
    double energy = 0;
    for (std::size_t i = half; i < kCount; ++i) {
      energy += rest[i] * rest[i];
      ASSERT_NEAR(rest[i], owed[i], 1e-3) << i;
    }
    EXPECT_GT(energy, 0.1);
  });
}

TEST(Elastic, ParameterAddedBeforeALossIsKept) {
  std::latch is_added(kElasticRanks - 1);
  run_mortal([&](Transport& transport) {
    Training run(transport, elastic());
    Values more(1'000, 1.0f);
    run.step(0);
    if (run.rank == kVictim) return is_added.wait();
    run.reducer.add("more", more);
    run.reducer.ready("more");
    is_added.count_down();
    const RanksLostError lost = expect_lost([&] { run.step(1); });
    EXPECT_EQ(lost.last_step(), 1u);
    run.reducer.resume();
    std::ranges::fill(more, static_cast<float>(run.rank));
    run.reducer.ready("more");
    run.step(1);
    EXPECT_NEAR(more.at(0), 4.0f / 3, 0.02);
    EXPECT_EQ(run.reducer.parameter_statistics().at(1).steps, 1u);
  });
}

// The caller may free memory passed for one step.
TEST(Elastic, MemoryGivenForOneStepIsNotUsedAfterALoss) {
  run_mortal([](Transport& transport) {
    Training run(transport, elastic());
    run.reducer.add("anew", {.count = 1'000});
    Values lent(1'000, 1.0f);
    run.reducer.ready("anew", lent);
    run.step(0);
    if (run.rank == kVictim) return;
    expect_lost([&] {
      run.reducer.ready("anew", lent);
      run.step(1);
    });
    run.reducer.resume();
    expect_error<InvalidArgumentError>([&] { run.reducer.ready("anew"); }, "without a gradient");
    Values other(1'000, 3.0f);
    run.reducer.ready("anew", other);
    run.step(1);
    EXPECT_EQ(other.at(0), 3.0f);
  });
}

// The trainer's own channel fails first. The reducer then reports the lost ranks.
TEST(Elastic, CheckFaultsReportsLossOnAnotherChannel) {
  for (const ProgressBy progress : {ProgressBy::kThread, ProgressBy::kCaller})
    run_mortal([progress](Transport& transport) {
      const auto own = transport.channel();
      ReducerOptions options = elastic();
      options.progress = progress;
      Training run(transport, options);
      run.step(0);
      run.reducer.check_faults();  // no fault yet
      const auto meet = [&] {
        own->barrier({.name = "own", .tag = own->reserve_tags(1)}).wait_synchronize();
      };
      if (run.rank == kVictim) return meet();
      const auto meet_twice = [&] {
        meet();
        meet();
      };
      EXPECT_THROW(meet_twice(), TransportError);
      const RanksLostError lost = expect_lost([&] { run.reducer.check_faults(); });
      EXPECT_EQ(lost.members(), (std::vector<int>{0, 1, 3}));
      run.reducer.resume();
      run.reducer.check_faults();
      run.step(1);
    });
}

TEST(Elastic, HandleFromBeforeALossStaysValid) {
  run_mortal([](Transport& transport) {
    Training run(transport, elastic());
    const ReducerHandle handle = run.reducer.ready("w");
    run.reducer.wait();
    if (is_gone(lose(run))) return;
    run.reducer.resume();
    run.step(3);
    EXPECT_TRUE(handle.test());
    handle.wait();
  });
}

TEST(Elastic, QueriesWorkAfterALossBeforeResume) {
  run_mortal([](Transport& transport) {
    Training run(transport, elastic());
    if (is_gone(lose(run))) return;
    EXPECT_EQ(run.reducer.statistics().steps, 2u);
    EXPECT_EQ(read_state(run.reducer.save_state()).step, 2u);
    EXPECT_EQ(run.reducer.explain().substr(0, 3), "w: ");
    EXPECT_GT(run.reducer.residual_norms().at(0), 0.0);
    EXPECT_THROW(run.step(2), RanksLostError);  // still lost
    run.reducer.resume();
  });
}

// A further loss may be detected during recovery.
void go_on(Training& run) {
  for (bool again = true; again;) try {
      run.reducer.resume();
      run.step(2);
      again = false;
    } catch (const RanksLostError&) {
    }
}

// Two of four ranks: the half with rank 0 continues, the other half must not.
TEST(Elastic, OnlyHalfWithLowestRankContinues) {
  for (const bool lowest_is_left : {true, false})
    run_mortal([&](Transport& transport) {
      Training run(transport, elastic());
      if (is_gone(lose(run, {lowest_is_left ? 1 : 0, 2}))) return;
      if (lowest_is_left)
        EXPECT_NO_THROW(go_on(run));
      else
        EXPECT_THROW(go_on(run), InvalidArgumentError);
    });
}

TEST(Elastic, SingleRankContinuesIfMinRanksAllows) {
  run_mortal(2, {}, [](Transport& transport) {
    ReducerOptions options = elastic();
    options.min_ranks = 1;
    Training run(transport, options);
    if (is_gone(lose(run, {0}))) return;
    run.reducer.resume();
    const Values own = given(2, 1);
    EXPECT_EQ(run.reducer.transport().ranks(), 1);
    EXPECT_LT(squared_error(run.step(2), {own.begin(), own.end()}), 1e-3);
  });
}

TEST(Elastic, InvalidOptionsAndCallsAreRejected) {
  run_ranks(2, {}, [](Transport& transport) {
    ReducerOptions options = elastic();
    Tuner tuner(transport, {.link = LinkFigures{.seconds_per_byte = 1e-8}});
    options.tuner = &tuner;
    EXPECT_TRUE(says(error_of<InvalidArgumentError>([&] { GradientReducer(transport, options); }),
                     "its own Tuner"));
    GradientReducer reducer(transport, elastic());
    GradientShape shape{.count = 100};
    shape.collective = Collective::kReduceScatter;
    EXPECT_TRUE(
        says(error_of<InvalidArgumentError>([&] { reducer.add("w", shape); }), "all-reduced"));
    EXPECT_TRUE(
        says(error_of<InvalidArgumentError>([&] { reducer.resume(); }), "no rank was lost"));
    GradientReducer plain(transport, {.codec = "int8"});
    EXPECT_TRUE(says(error_of<InvalidArgumentError>([&] { plain.resume(); }), "RanksLostError"));
    for (const int ranks : {-1, 99}) {
      options = elastic();
      options.min_ranks = ranks;
      EXPECT_TRUE(says(error_of<InvalidArgumentError>([&] { GradientReducer(transport, options); }),
                       "give 1 to 2"));
    }
    options = {.codec = "int8", .min_ranks = 1};
    EXPECT_TRUE(says(error_of<InvalidArgumentError>([&] { GradientReducer(transport, options); }),
                     "set elastic too"));
  });
}

TEST(Elastic, ResumeRejectsDimsForFormerRankCount) {
  run_mortal([](Transport& transport) {
    ReducerOptions options = elastic();
    options.dims = {2, 2};
    Training run(transport, options);
    if (is_gone(lose(run))) return;
    EXPECT_TRUE(says(error_of<InvalidArgumentError>([&] { run.reducer.resume(); }), "dims"));
  });
}

TEST(Elastic, ElasticOptionMismatchFailsOnAllRanks) {
  run_ranks(2, {}, [](Transport& transport) {
    ReducerOptions options = elastic();
    if (transport.rank() == 1) options.elastic = Elastic::kOff;
    try {
      Training run(transport, options);
      run.step(0);
      ADD_FAILURE() << "one rank is elastic";
    } catch (const TransportError& error) {
      EXPECT_TRUE(says(error.what(), "elastic is 1 on rank 0, 0 on rank 1"));
      ASSERT_EQ(error.disagreement().size(), 1u);
      EXPECT_EQ(error.disagreement().front().name, "elastic");
    }
  });
}

}  // namespace
}  // namespace tersor::testing
