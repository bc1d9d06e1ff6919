// Loading of a reducer's state: false fields are refused. Ranks with different loaded states raise
// an error in the first step.
#include "comm/reducer/state.h"
#include "tests/comm/training.h"
#include "tests/support/codec_harness.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace tersor::testing {
namespace {

using Bytes = std::vector<std::byte>;
using Names = std::vector<std::string>;

/// Three parameters of unequal counts. Gradients become ready in any order.
struct Trio {
  Trio(Transport& transport, const ReducerOptions& options) : reducer(transport, options) {
    for (std::size_t i = 0; i < 3; ++i) reducer.add(name(i), gradients[i]);
  }

  static std::string name(std::size_t i) { return "p" + std::to_string(i); }

  void step(const Names& order, float value) {
    for (Values& one : gradients) std::ranges::fill(one, value);
    for (const std::string& one : order) reducer.ready(one);
    reducer.wait();
  }

  std::array<Values, 3> gradients = {Values(5000), Values(300), Values(9)};
  GradientReducer reducer;
};

const Names kForward = {"p0", "p1", "p2"}, kBackward = {"p2", "p1", "p0"};

ReducerOptions summed(SendingOrder order = SendingOrder::kLearned) {
  return {.codec = "int4+ef", .reduction = Reduction::kSum, .order = order};
}

/// The state after `steps` steps. Each gradient is rank + 1.
Bytes saved(Transport& transport, const ReducerOptions& options, int steps,
            const Names& order = kForward) {
  Trio run(transport, options);
  for (int i = 0; i < steps; ++i) run.step(order, static_cast<float>(transport.rank() + 1));
  return run.reducer.save_state();
}

// A state from before the option `lanes` became `bits`.
TEST(Loading, AcceptsFormerOptionNameInState) {
  run_ranks(2, {}, [](Transport& transport) {
    const ReducerOptions options{.rules = {{"*", "intsum:bits=16+ef"}}};
    ReducerState state = read_state(saved(transport, options, 2));
    for (ReducerState::Parameter& one : state.parameters) one.codec = "intsum:lanes=16+ef";
    Trio run(transport, options);
    run.reducer.load_state(write_state(state));
    EXPECT_EQ(run.reducer.save_state(), saved(transport, options, 2));
  });
}

TEST(Loading, AllRanksUseSendingOrderOfRank0) {
  run_ranks(2, {}, [](Transport& transport) {
    const std::array<Bytes, 2> saves = {saved(transport, summed(), 3),
                                        saved(transport, summed(), 3, kBackward)};
    Trio run(transport, summed());
    run.reducer.load_state(saves[static_cast<std::size_t>(transport.rank())]);
    for (int step = 0; step < 3; ++step) {
      run.step(kForward, static_cast<float>(transport.rank() + 1));
      for (const Values& one : run.gradients) EXPECT_NEAR(one[0], 3, 1e-3);
    }
    EXPECT_EQ(read_state(run.reducer.save_state()).order, (std::vector<std::uint32_t>{0, 1, 2}));
  });
}

/// The error of each rank in the first step after loading a state. No rank loads an empty state.
std::vector<std::string> errors_after(int ranks, const ReducerOptions& options,
                                      const std::function<Bytes(Transport&, Trio&)>& state_of) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  run_ranks(ranks, {}, [&](Transport& transport) {
    Trio run(transport, options);
    const Bytes state = state_of(transport, run);
    if (!state.empty()) run.reducer.load_state(state);
    errors[static_cast<std::size_t>(transport.rank())] =
        error_of<TransportError>([&] { run.step(kForward, 1); });
  });
  return errors;
}

TEST(Loading, MismatchedSaveStepsAreReportedOnAllRanks) {
  for (const SendingOrder order : {SendingOrder::kLearned, SendingOrder::kReadyOrder})
    for (const Elastic elastic : {Elastic::kOff, Elastic::kOn}) {
      ReducerOptions options = summed(order);
      options.elastic = elastic;
      const auto errors = errors_after(3, options, [&](Transport& transport, Trio&) {
        const Bytes early = saved(transport, options, 2), late = saved(transport, options, 4);
        return transport.rank() == 1 ? late : early;
      });
      for (const std::string& error : errors)
        EXPECT_TRUE(says(error,
                         "rank 0 loaded the exact state of step 2, rank 1 the exact "
                         "state of step 4: load the same save on all ranks"))
            << error;
    }
}

TEST(Loading, MixedExactAndPortableStatesAreReported) {
  const auto errors = errors_after(2, summed(), [](Transport& transport, Trio& run) {
    run.step(kForward, 1);
    const Bytes portable = run.reducer.save_portable_state();
    return transport.rank() == 1 ? portable : run.reducer.save_state();
  });
  for (const std::string& error : errors)
    EXPECT_TRUE(says(error,
                     "rank 0 loaded the exact state of step 1, rank 1 the portable "
                     "state of step 1"))
        << error;
}

TEST(Loading, MissingLoadOnOneRankIsReported) {
  for (const SendingOrder order : {SendingOrder::kLearned, SendingOrder::kReadyOrder})
    for (const bool has_trained : {false, true}) {
      const auto errors = errors_after(2, summed(order), [&](Transport& transport, Trio& run) {
        const Bytes state = saved(transport, summed(order), 2);
        for (int i = 0; has_trained && i < 2; ++i) run.step(kForward, 1);
        return transport.rank() == 0 ? state : Bytes();
      });
      const std::string loaded = "number of loaded states is 1 on rank 0, 0 on rank 1";
      for (const std::string& error : errors) EXPECT_TRUE(says(error, loaded)) << error;
    }
}

// Each rank would multiply by a different memory, and the sum of the products would be meaningless.
TEST(Loading, MismatchedCodecMemoryIsReported) {
  std::vector<std::string> errors(2);
  run_ranks(2, {}, [&](Transport& transport) {
    std::array<Bytes, 2> states;
    for (int run = 0; run < 2; ++run) {
      Training training(transport, {.codec = "lowrank"});
      training.step(run);
      states[static_cast<std::size_t>(run)] = training.reducer.save_state();
    }
    const auto rank = static_cast<std::size_t>(transport.rank());
    Training run(transport, {.codec = "lowrank"});
    run.reducer.load_state(states[rank]);
    errors[rank] = error_of<TransportError>([&] { run.step(2); });
  });
  for (const std::string& error : errors)
    EXPECT_TRUE(says(error,
                     "rank 0 loaded the exact state of step 1, rank 1 another exact "
                     "state of step 1"))
        << error;
}

TEST(Loading, FirstStepSendsEarlyInTheLoadedOrder) {
  run_ranks(2, {}, [](Transport& transport) {
    ReducerOptions options = summed();
    options.bucket_bytes = 4;
    const Bytes state = saved(transport, options, 2, kBackward);
    Trio run(transport, options);
    run.reducer.load_state(state);
    EXPECT_EQ(run.reducer.save_state(), state);
    for (Values& one : run.gradients) std::ranges::fill(one, 1.0f);
    run.reducer.ready("p2").wait();
    EXPECT_NEAR(run.gradients[2][0], 2, 1e-3);
    for (const char* rest : {"p1", "p0"}) run.reducer.ready(rest);
    run.reducer.wait();
    EXPECT_NEAR(run.gradients[0][0], 2, 1e-3);
  });
}

TEST(Loading, ComparesStatesLoadedLater) {
  run_ranks(2, {}, [](Transport& transport) {
    Trio run(transport, summed());
    for (int load = 0; load < 3; ++load) {
      run.step(kForward, 1);
      const Bytes state = load == 1 ? run.reducer.save_portable_state() : run.reducer.save_state();
      for (int twice = 0; twice <= transport.rank(); ++twice) run.reducer.load_state(state);
    }
    run.step(kForward, 1);
    EXPECT_NEAR(run.gradients[0][0], 2, 1e-3);
  });
}

/// Returns the message of load_state for a changed state. The reducer must stay unchanged.
template <typename Run>
std::string refusal(Run& run, const Bytes& bytes,
                    const std::function<void(ReducerState&)>& change) {
  ReducerState state = read_state(bytes);
  change(state);
  const Bytes before = run.reducer.save_state();
  const std::string error =
      error_of<InvalidArgumentError>([&] { run.reducer.load_state(write_state(state)); });
  EXPECT_EQ(run.reducer.save_state(), before);
  return error;
}

TEST(Loading, RejectsNonPermutationOrder) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, {}, [](Transport& transport) {
      const Bytes state = saved(transport, summed(), 2);
      Trio run(transport, summed());
      using Order = std::vector<std::uint32_t>;
      for (const Order& order :
           {Order{7}, Order{1u << 31}, Order{0}, Order{0, 1, 1}, Order{0, 1, 2, 3}, Order{0, 1, 3}})
        EXPECT_TRUE(says(refusal(run, state, [&](ReducerState& one) { one.order = order; }),
                         "sending order is not a permutation of the 3 parameters"));
    });
}

TEST(Loading, RejectsNonexistentRanks) {
  run_ranks(2, {}, [](Transport& transport) {
    Trio run(transport, summed());
    run.step(kForward, 1);
    const Bytes state = run.reducer.save_portable_state();
    const std::pair<std::uint32_t, std::uint32_t> lies[] = {
        {0, 0}, {2, 2}, {2, 1u << 31}, {1u << 31, 0}, {65537, 0}};
    for (const auto& [ranks, rank] : lies)
      EXPECT_TRUE(says(refusal(run, state,
                               [&](ReducerState& one) {
                                 one.ranks = ranks;
                                 one.rank = rank;
                               }),
                       "which does not exist"));
    run.reducer.load_state(state);
  });
}

TEST(Loading, RejectsNonFiniteValuesByName) {
  run_ranks(2, {}, [](Transport& transport) {
    ReducerOptions options{.codec = "int4+ef", .algorithm = Algorithm::kTwoShot};
    Training run(transport, options);
    run.step(1);
    const Bytes exact = run.reducer.save_state(), portable = run.reducer.save_portable_state();
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const float bad : {std::nanf(""), kInfinity, -kInfinity})
      for (const Bytes& state : {exact, portable})
        EXPECT_TRUE(says(
            refusal(run, state, [&](ReducerState& one) { one.parameters[0].residual.at(5) = bad; }),
            "value 5 of the state's residual of \"w\" is"));
    options.residual_dtype = Dtype::kBf16;
    Training narrow(transport, options);
    EXPECT_TRUE(says(refusal(narrow, exact,
                             [](ReducerState& one) {
                               one.parameters[0].owner.at(3) = std::numeric_limits<float>::max();
                             }),
                     "value 3 of the state's owner's residual of \"w\" is"));
  });
}

TEST(Loading, ScalingBy0ClearsANaN) {
  run_ranks(2, {}, [](Transport& transport) {
    Trio run(transport, summed());
    run.step(kForward, std::nanf(""));
    EXPECT_THROW(run.reducer.scale_residuals(std::nanf("")), InvalidArgumentError);
    run.reducer.scale_residuals(0);
    run.step(kForward, 1);
    for (const Values& one : run.gradients)
      for (const float value : one) ASSERT_NEAR(value, 2, 1e-3);
  });
}

}  // namespace
}  // namespace tersor::testing
