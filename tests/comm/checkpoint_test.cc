// A reducer's state: the same run continues bit for bit, another number of ranks loses nothing, and
// steps can be discarded.
#include "comm/reducer/state.h"
#include "tests/comm/training.h"
#include "tests/support/grid.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>

namespace tersor::testing {
namespace {

class Checkpoint : public ::testing::TestWithParam<std::string> {};

/// Direct, and on a grid.
const std::vector<int> kCheckpointDims[] = {{}, {2, 2}};

TEST_P(Checkpoint, SameRunContinuesBitForBit) {
  for (const std::vector<int>& dims : kCheckpointDims)
    expect_goes_on(4, {.codec = GetParam(), .dims = dims});
}

TEST_P(Checkpoint, RankCountChangePreservesResiduals) {
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean})
    for (const std::vector<int>& dims : kCheckpointDims) {
      if (test::grid_is_small() && (reduction == Reduction::kSum) != dims.empty()) continue;
      ReducerOptions options{.codec = GetParam(), .reduction = reduction, .dims = dims};
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
      options.dims = {};
      for (const int ranks : test::grid_is_small() ? std::vector{3} : std::vector{2, 3, 8}) {
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

TEST_P(Checkpoint, DiscardedStepDoesNotChangeState) {
  for (const std::vector<int>& dims : kCheckpointDims)
    run_ranks(4, {}, [&](Transport& transport) {
      const ReducerOptions options{
          .codec = GetParam(), .dims = dims, .transactional = Transactional::kOn};
      Training run(transport, options), plain(transport, {.codec = GetParam(), .dims = dims});
      run.step(0);
      plain.step(0);
      for (int i = 0; i < 2; ++i) {
        run.step(9);
        run.reducer.discard_step();
        EXPECT_THROW(run.reducer.discard_step(), InvalidArgumentError);
      }
      for (int step = 1; step < 3; ++step) {
        const Values wanted = plain.step(step);
        EXPECT_EQ(run.step(step), wanted);
      }
      EXPECT_EQ(run.reducer.statistics().steps_discarded, 2u);
    });
}

TEST_P(Checkpoint, JoinedStepsAreDiscardedTogether) {
  run_ranks(4, {}, [&](Transport& transport) {
    Training run(transport, {.codec = GetParam(), .transactional = Transactional::kOn});
    Training plain(transport, {.codec = GetParam()});
    run.reducer.accept_steps();
    for (int step = 0; step < 3; ++step) {
      const Values wanted = plain.step(step);
      EXPECT_EQ(run.step(step), wanted);
      run.reducer.accept_steps();
      for (int i = 0; i < step + 1; ++i) run.step(90 + i);
      run.reducer.discard_step();
    }
    EXPECT_THROW(run.reducer.discard_step(), InvalidArgumentError);
    EXPECT_EQ(run.reducer.statistics().steps_discarded, 6u);
  });
}

TEST_P(Checkpoint, ScaledResidualsScaleTheNextResult) {
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

/// A training with two equal parameters.
struct Pair : Training {
  Pair(Transport& transport, const ReducerOptions& options) : Training(transport, options) {
    reducer.add("v", second, 100, 200);
  }

  void step_both(const Values& values) {
    gradient = second = values;
    reducer.ready("w");
    reducer.ready("v");
    reducer.wait();
  }

  Values second = Values(kCount);
};

TEST_P(Checkpoint, ScalesOnlyNamedResiduals) {
  run_ranks(2, {}, [](Transport& transport) {
    Pair run(transport, {.codec = GetParam()}), scaled(transport, {.codec = GetParam()});
    for (Pair* one : {&run, &scaled}) one->step_both(gaussian(kCount, 1));
    const std::string some[] = {"v"}, unknown[] = {"v", "nobody"};
    EXPECT_THROW(scaled.reducer.scale_residuals(4.0f, unknown), InvalidArgumentError);
    scaled.reducer.scale_residuals(4.0f, some);
    for (Pair* one : {&run, &scaled}) one->step_both(Values(kCount));
    EXPECT_EQ(scaled.gradient, run.gradient);
    EXPECT_NE(run.second, Values(kCount));
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(scaled.second[i], 4.0f * run.second[i]) << i;
  });
}

INSTANTIATE_TEST_SUITE_P(Codecs, Checkpoint,
                         ::testing::Values("int8+ef", "int4:rounding=stochastic+ef",
                                           "hadamard:bits=1+ef", "blocktopk:density=0.05+ef",
                                           "topk:density=0.05+ef", "lowrank:rank=8+ef"));

TEST(State, MismatchedOrDamagedStateIsRejectedWithReason) {
  run_ranks(2, {}, [](Transport& transport) {
    Training run(transport, {.codec = "int8+ef"});
    run.step(0);
    auto state = run.reducer.save_state();
    const auto message = [&](const std::vector<std::byte>& bytes, GradientReducer& reducer) {
      try {
        reducer.load_state(bytes);
      } catch (const InvalidArgumentError& error) {
        return std::string(error.what());
      }
      return std::string("no error");
    };
    Training sum(transport, {.codec = "int8+ef", .reduction = Reduction::kSum});
    EXPECT_NE(message(state, sum.reducer).find("sum or mean"), std::string::npos);
    Training none(transport, {.codec = "none"});
    EXPECT_NE(message(state, none.reducer).find("\"w\" used codec int8+ef"), std::string::npos);
    Training int4(transport, {.codec = "int4+ef"});
    EXPECT_NE(message(state, int4.reducer).find("\"w\" used codec int8+ef"), std::string::npos);
    auto older = state;
    older[4] = std::byte{6};
    EXPECT_NE(message(older, run.reducer).find("has version 6; this build reads version 7"),
              std::string::npos);
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
    EXPECT_THROW(run.reducer.load_state(state), InvalidArgumentError);
  });
}

/// The error of loading a state into a reducer of the parameters `names`, or "" on success.
std::string refusal(Transport& transport, const std::vector<std::string>& names,
                    std::span<const std::byte> state, std::size_t count = kCount) {
  GradientReducer reducer(transport, {.codec = "int8+ef"});
  std::vector<float> gradient(count);
  for (const std::string& name : names) reducer.add(name, gradient, 100, count / 100);
  try {
    reducer.load_state(state);
  } catch (const InvalidArgumentError& error) {
    return error.what();
  }
  return "no error";
}

TEST(State, ModelMismatchErrorNamesTheParameter) {
  run_ranks(1, {}, [](Transport& transport) {
    const Training run(transport, {.codec = "int8+ef"});
    const auto state = run.reducer.save_state();
    EXPECT_EQ(refusal(transport, {"w"}, state), "no error");
    EXPECT_EQ(
        refusal(transport, {"w", "b"}, state),
        "the state has no parameter 1, this reducer's is \"b\" with 20000 values: the state is "
        "of another model");
    EXPECT_EQ(
        refusal(transport, {}, state),
        "the state's parameter 0, \"w\", was not added to this reducer: the state is of another "
        "model");
    EXPECT_EQ(refusal(transport, {"v"}, state),
              "the state's parameter 0 is \"w\" with 20000 values, this reducer's is \"v\" with "
              "20000 values: the state is of another model");
    EXPECT_EQ(refusal(transport, {"w"}, state, 10000),
              "the state's parameter 0 is \"w\" with 20000 values, this reducer's is \"w\" with "
              "10000 values: the state is of another model");
  });
}

// A later run may choose another codec. Without residuals, the change loses nothing.
TEST(State, AutoChosenCodecMayDifferWithoutResiduals) {
  run_ranks(2, {}, [](Transport& transport) {
    const auto automatic = [](double seconds_per_byte) {
      return ReducerOptions{.codec = "auto",
                            .auto_link = LinkFigures{.seconds_per_byte = seconds_per_byte}};
    };
    const Training slow(transport, automatic(1e-6));
    Training quick(transport, automatic(1e-15));
    const auto state = slow.reducer.save_state();
    ASSERT_NE(read_state(state).parameters[0].codec,
              read_state(quick.reducer.save_state()).parameters[0].codec);
    quick.reducer.load_state(state);
  });
}

TEST(State, ContainsLongestResidualSizesOfAllRanks) {
  constexpr int kRanks = 3;
  std::vector<ReducerState> states(kRanks);
  run_ranks(kRanks, {}, [&](Transport& transport) {
    const Training run(transport, {.codec = "int8+ef"});
    states[static_cast<std::size_t>(transport.rank())] = read_state(run.reducer.save_state());
  });
  std::size_t residual = 0, owner = 0, owners = 0;
  for (const ReducerState& state : states) {
    residual = std::max(residual, state.parameters[0].residual.size());
    owner = std::max(owner, state.parameters[0].owner.size());
    owners += state.parameters[0].owner.size();
  }
  EXPECT_EQ(owners, kCount);
  for (const ReducerState& state : states) {
    EXPECT_EQ(state.parameters[0].longest_residual, residual);
    EXPECT_EQ(state.parameters[0].longest_owner, owner);
  }
}

}  // namespace
}  // namespace tersor::testing
