// Codecs scheduled by step: the active codec of each step, and no loss at a change.
#include "comm/reducer/state.h"
#include "tests/comm/training.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tersor::testing {
namespace {

const std::vector<ReducerRule> kSchedule = {
    {"*", "bf16"}, {"*", "int4+ef", 2}, {"*", "topk:density=0.01+ef", 4}, {"*", "int8", 6}};

ReducerOptions scheduled(std::vector<ReducerRule> rules = kSchedule) {
  return {.rules = std::move(rules)};
}

std::string codec_of(Training& run) { return run.reducer.parameter_statistics().front().codec; }

TEST(Phases, EachStepUsesCodecOfItsPhaseWithFeedback) {
  run_ranks(3, {}, [](Transport& transport) {
    Training run(transport, scheduled());
    const std::vector<std::string> codecs = {
        "bf16+ef", "bf16+ef", "int4+ef", "int4+ef", "topk:density=0.01+ef", "topk:density=0.01+ef",
        "int8+ef", "int8+ef"};
    for (std::size_t step = 0; step < codecs.size(); ++step) {
      run.step(static_cast<int>(step));
      EXPECT_EQ(codec_of(run), codecs[step]) << step;
    }
    EXPECT_NE(run.reducer.explain().find("from step 2 on int4+ef, from step 4 on topk"),
              std::string::npos);
    EXPECT_TRUE(run.reducer.parameter_statistics().front().codec_may_change);
    EXPECT_EQ(run.reducer.explain_choice(), "");
  });
}

TEST(Phases, SentBytesFollowThePhase) {
  run_ranks(2, {}, [](Transport& transport) {
    Training run(transport, scheduled());
    std::vector<std::uint64_t> sent;
    for (int step = 0; step < 8; ++step) {
      run.reducer.reset_statistics();
      run.step(step);
      sent.push_back(run.reducer.statistics().sent_bytes);
    }
    EXPECT_GT(sent[1], 3 * sent[2]);  // 16 bits, then 4.25
    EXPECT_GT(sent[3], 2 * sent[4]);  // then about 0.4
    EXPECT_LT(sent[5], sent[6]);      // then 8.1
  });
}

// Residuals of owners are kept even if the next codec has none.
TEST(Phases, ResultsPlusResidualsEqualInputsAcrossPhases) {
  for (const int ranks : {1, 2, 4}) {
    run_ranks(ranks, {}, [&](Transport& transport) {
      Training run(transport, scheduled());
      std::vector<double> came(kCount, 0.0), sent(kCount, 0.0);
      for (int step = 0; step < 8; ++step) {
        for (int rank = 0; rank < ranks; ++rank) {
          const Values one = gaussian(kCount, static_cast<std::uint64_t>(step * 100 + rank));
          for (std::size_t i = 0; i < kCount; ++i) sent[i] += double{one[i]} / ranks;
        }
        const Values& mean = run.step(step);
        for (std::size_t i = 0; i < kCount; ++i) came[i] += mean[i];
      }
      const std::vector<double> rest = drain(run);
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_NEAR(came[i] + rest[i], sent[i], 1e-4) << i;
    });
  }
}

TEST(Phases, CheckpointInAnyPhaseContinuesBitForBit) {
  for (const int stop : {1, 2, 3, 4, 5, 6}) {
    run_ranks(4, {}, [&](Transport& transport) {
      Training first(transport, scheduled());
      for (int step = 0; step < stop; ++step) first.step(step);
      const auto state = first.reducer.save_state();
      Training second(transport, scheduled());
      second.reducer.load_state(state);
      for (int step = stop; step < 8; ++step) {
        const Values wanted = first.step(step);
        ASSERT_EQ(second.step(step), wanted) << step << " after " << stop;
        ASSERT_EQ(codec_of(second), codec_of(first));
      }
    });
  }
}

TEST(Phases, PortableStateKeepsPhaseWithOtherRankCount) {
  std::vector<std::byte> state;
  run_ranks(4, {}, [&](Transport& transport) {
    Training run(transport, scheduled());
    for (int step = 0; step < 4; ++step) run.step(step);
    const auto portable = run.reducer.save_portable_state();
    if (transport.rank() == 0) state = portable;
  });
  run_ranks(3, {}, [&](Transport& transport) {
    Training run(transport, scheduled());
    run.reducer.load_state(state);
    run.step(4);
    EXPECT_EQ(codec_of(run), "topk:density=0.01+ef");
    Training other(transport, scheduled({{"*", "int8+ef"}, {"*", "hadamard+ef", 3}}));
    EXPECT_THROW(other.reducer.load_state(state), InvalidArgumentError);
  });
}

TEST(Phases, DiscardedStepAtPhaseChangeLeavesNoTrace) {
  run_ranks(3, {}, [](Transport& transport) {
    ReducerOptions options = scheduled();
    Training plain(transport, options);
    options.transactional = Transactional::kOn;
    Training run(transport, options);
    for (int step = 0; step < 8; ++step) {
      run.step(step + 50);
      run.reducer.discard_step();
      const Values wanted = plain.step(step);
      ASSERT_EQ(run.step(step), wanted) << step;
      ASSERT_EQ(codec_of(run), codec_of(plain));
    }
  });
}

// Joined steps enter a phase without residuals of owners; discard_step() restores the residuals.
TEST(Phases, DiscardingJoinedStepsAcrossPhasesLosesNothing) {
  run_ranks(4, {}, [](Transport& transport) {
    ReducerOptions options = scheduled();
    options.transactional = Transactional::kOn;
    Training run(transport, options);
    std::vector<double> found(kCount, 0.0), sent(kCount, 0.0);
    for (int step = 0; step < 6; ++step) {
      for (int rank = 0; rank < 4; ++rank) {
        const Values one = gaussian(kCount, static_cast<std::uint64_t>(step * 100 + rank));
        for (std::size_t i = 0; i < kCount; ++i) sent[i] += double{one[i]} / 4;
      }
      const Values& mean = run.step(step);
      for (std::size_t i = 0; i < kCount; ++i) found[i] += mean[i];
      run.reducer.accept_steps();
      for (int more = 0; more < 3; ++more) run.step(50 + more);
      run.reducer.discard_step();
    }
    const std::vector<double> rest = drain(run);
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_NEAR(found[i] + rest[i], sent[i], 1e-4) << i;
  });
}

// A gradient scaler may save a checkpoint before the step is known to be discarded.
TEST(Phases, SavingBeforeAStepIsDiscardedChangesNothing) {
  run_ranks(3, {}, [](Transport& transport) {
    ReducerOptions options = scheduled();
    options.transactional = Transactional::kOn;
    Training plain(transport, options), saved(transport, options);
    for (int step = 0; step < 8; ++step) {
      plain.step(step + 50);
      saved.step(step + 50);
      (void)saved.reducer.save_state();
      plain.reducer.discard_step();
      saved.reducer.discard_step();
      const Values wanted = plain.step(step);
      ASSERT_EQ(saved.step(step), wanted) << step;
    }
  });
}

TEST(Phases, StateLoadsIntoSameCodecWithoutSchedule) {
  run_ranks(2, {}, [](Transport& transport) {
    const std::string codec = "topk:density=0.01+ef";
    Training first(transport, scheduled({{"*", "bf16"}, {"*", codec, 1}}));
    for (int step = 0; step < 3; ++step) first.step(step);
    Training second(transport, {.codec = codec});
    second.reducer.load_state(first.reducer.save_state());
    const Values wanted = first.step(3);
    EXPECT_EQ(second.step(3), wanted);
  });
}

TEST(Phases, ScheduleMismatchFailsOnAllRanks) {
  run_ranks(2, {}, [](Transport& transport) {
    const std::uint32_t from = transport.rank() == 0 ? 2 : 3;
    Training run(transport, scheduled({{"*", "bf16"}, {"*", "int4+ef", from}}));
    EXPECT_THROW(run.step(0), Error);
  });
}

TEST(Phases, FirstMatchingPatternSetsTheSchedule) {
  run_ranks(2, {}, [](Transport& transport) {
    GradientReducer reducer(
        transport, scheduled({{"*.bias", "bf16"}, {"*", "int8"}, {"*", "int4", 1}, {"*", "f16"}}));
    Values bias(100, 1.0f), weight(5000, 1.0f);
    reducer.add("a.bias", bias);
    reducer.add("a.weight", weight);
    for (const std::string codec : {"int8", "int4", "int4"}) {
      reducer.ready("a.bias");
      reducer.ready("a.weight");
      reducer.wait();
      EXPECT_EQ(reducer.parameter_statistics()[0].codec, "bf16");
      EXPECT_EQ(reducer.parameter_statistics()[1].codec, codec);
    }
  });
}

TEST(Phases, ShardsFollowTheSchedule) {
  run_ranks(2, {}, [](Transport& transport) {
    ReducerOptions options = scheduled({{"*", "none"}, {"*", "int8+ef", 1}});
    options.order = SendingOrder::kReadyOrder;
    GradientReducer reducer(transport, options);
    reducer.add("w", {.count = 5000, .collective = Collective::kReduceScatter});
    Values gradient(5000, 1.5f), shard(2500);
    for (const std::string codec : {"none+ef", "int8+ef"}) {
      reducer.ready("w", gradient, shard).wait();
      reducer.wait();
      EXPECT_EQ(reducer.parameter_statistics().front().codec, codec);
      EXPECT_NEAR(shard[7], 1.5f, 0.02f);
    }
  });
}

void expect_refused(const std::vector<ReducerRule>& rules, const std::string& part) {
  run_ranks(1, {}, [&](Transport& transport) {
    expect_error<InvalidArgumentError>(
        [&] { GradientReducer reducer(transport, scheduled(rules)); }, part);
  });
}

TEST(Phases, InvalidSchedulesAreRejectedWithReason) {
  expect_refused({{"*", "int8", 5}}, "\"*\" begins with step 5");
  expect_refused({{"*", "bf16"}, {"w", "int8", 5}}, "\"w\" begins with step 5");
  expect_refused({{"*", "bf16"}, {"*", "auto", 5}}, "contains codec auto");
  expect_refused({{"*", "bf16"}, {"*", "int9", 5}}, "int9");
}

// Adding the parameter raises the error, not the scheduled step.
TEST(Phases, InvalidLaterCodecIsRejectedAtOnce) {
  run_ranks(2, {}, [](Transport& transport) {
    GradientReducer reducer(transport, scheduled({{"*", "none"}, {"*", "intsum", 100}}));
    EXPECT_THROW(reducer.add("w", {.count = 5000, .collective = Collective::kReduceScatter}),
                 InvalidArgumentError);
  });
}

}  // namespace
}  // namespace tersor::testing
