// A reducer's state: the same run goes on bit for bit, another number of ranks loses nothing, steps
// can be thrown away.
#include "tests/comm/training.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <string>

namespace tersor {
namespace {

using testing::drain;
using testing::kCount;
using testing::Training;
using testing::Values;

class Checkpoint : public ::testing::TestWithParam<std::string> {};

TEST_P(Checkpoint, TheSameRunGoesOnBitForBit) {
  run_ranks(4, {}, [](Transport& transport) {
    const ReducerOptions options{.codec = GetParam()};
    Training first(transport, options);
    for (int step = 0; step < 3; ++step) first.step(step);
    const auto state = first.reducer.save_state();
    Training second(transport, options);
    second.reducer.load_state(state);
    for (int step = 3; step < 6; ++step) {
      const Values wanted = first.step(step);
      EXPECT_EQ(second.step(step), wanted) << step;
    }
    EXPECT_EQ(second.reducer.save_state(), first.reducer.save_state());
  });
}

TEST_P(Checkpoint, AnotherNumberOfRanksKeepsTheContribution) {
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
    const ReducerOptions options{.codec = GetParam(), .reduction = reduction};
    std::vector<std::byte> state;
    std::vector<double> wanted;
    run_ranks(4, {}, [&](Transport& transport) {
      Training run(transport, options);
      for (int step = 0; step < 3; ++step) run.step(step);
      const auto portable = run.reducer.save_portable_state();
      const auto rest = drain(run);
      if (transport.rank() == 0) {
        state = portable;
        wanted = rest;
      }
    });
    double energy = 0;
    for (const double value : wanted) energy += value * value;
    ASSERT_GT(energy, 0.0);
    for (const int ranks : {2, 3, 8}) {
      run_ranks(ranks, {}, [&](Transport& transport) {
        Training run(transport, options);
        run.reducer.load_state(state);
        const auto found = drain(run);
        double error = 0;
        for (std::size_t i = 0; i < kCount; ++i)
          error += (found[i] - wanted[i]) * (found[i] - wanted[i]);
        EXPECT_LE(error / energy, 1e-6) << ranks << " ranks";
      });
    }
  }
}

TEST_P(Checkpoint, ADiscardedStepLeavesNoTrace) {
  run_ranks(3, {}, [](Transport& transport) {
    const ReducerOptions options{.codec = GetParam(), .transactions = Transactions::kOn};
    Training run(transport, options), plain(transport, {.codec = GetParam()});
    run.step(0);
    plain.step(0);
    for (int i = 0; i < 2; ++i) {
      run.step(9);
      run.reducer.discard_step();
      EXPECT_THROW(run.reducer.discard_step(), InvalidArgument);
    }
    for (int step = 1; step < 3; ++step) {
      const Values wanted = plain.step(step);
      EXPECT_EQ(run.step(step), wanted);
    }
    EXPECT_EQ(run.reducer.statistics().steps_discarded, 2u);
  });
}

TEST_P(Checkpoint, ResidualsFollowTheLossScale) {
  run_ranks(2, {}, [](Transport& transport) {
    Training run(transport, {.codec = GetParam()}), scaled(transport, {.codec = GetParam()});
    run.step(0);
    scaled.step(0);
    scaled.reducer.scale_residuals(4.0f);
    const Values wanted = run.empty_step();
    const Values found = scaled.empty_step();
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(found[i], 4.0f * wanted[i]) << i;
  });
}

INSTANTIATE_TEST_SUITE_P(Codecs, Checkpoint,
                         ::testing::Values("int8+ef", "int4:rounding=stochastic+ef",
                                           "topk:density=0.05+ef"));

TEST(State, OfAnotherReducerOrDamagedIsAnErrorThatSaysWhat) {
  run_ranks(2, {}, [](Transport& transport) {
    Training run(transport, {.codec = "int8+ef"});
    run.step(0);
    auto state = run.reducer.save_state();
    const auto message = [&](const std::vector<std::byte>& bytes, GradientReducer& reducer) {
      try {
        reducer.load_state(bytes);
      } catch (const InvalidArgument& error) {
        return std::string(error.what());
      }
      return std::string("no error");
    };
    Training sum(transport, {.codec = "int8+ef", .reduction = Reduction::kSum});
    EXPECT_NE(message(state, sum.reducer).find("sum or mean"), std::string::npos);
    Training none(transport, {.codec = "none"});
    EXPECT_NE(message(state, none.reducer).find("residual"), std::string::npos);
    auto damaged = state;
    damaged[100] ^= std::byte{1};
    EXPECT_NE(message(damaged, run.reducer).find("damaged"), std::string::npos);
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{3}, state.size() - 1})
      EXPECT_NE(
          message({state.begin(), state.begin() + static_cast<std::ptrdiff_t>(bytes)}, run.reducer),
          "no error");
    EXPECT_EQ(message(state, run.reducer), "no error");
  });
  std::vector<std::byte> state;
  run_ranks(2, {}, [&](Transport& transport) {
    Training run(transport, {.codec = "int8+ef"});
    run.step(0);
    if (transport.rank() == 0) state = run.reducer.save_state();
  });
  run_ranks(3, {}, [&](Transport& transport) {
    Training run(transport, {.codec = "int8+ef"});
    EXPECT_THROW(run.reducer.load_state(state), InvalidArgument);
  });
}

}  // namespace
}  // namespace tersor
