// A reducer after a failed step: queries still work, and residuals are available.
#include "comm/reducer/state.h"
#include "tests/comm/training.h"

#include <gtest/gtest.h>

#include <string>

namespace tersor::testing {
namespace {

class AfterError : public ::testing::TestWithParam<ProgressBy> {};

INSTANTIATE_TEST_SUITE_P(Progress, AfterError,
                         ::testing::Values(ProgressBy::kThread, ProgressBy::kCaller),
                         [](const auto& by) {
                           return by.param == ProgressBy::kThread ? "Thread" : "Caller";
                         });

/// Two complete steps, then a step aborted by rank 2 after the other ranks started. Returns the
/// state before the aborted step.
std::vector<std::byte> train_until_error(Training& run, Transport& transport) {
  for (int step = 0; step < 2; ++step) run.step(step);
  std::vector<std::byte> state = run.reducer.save_state();
  const auto meet = [&] {
    transport.barrier({.tag = transport.reserve_tags(1)}).wait_synchronize();
  };
  if (run.rank == 2) {
    meet();
    transport.abort("out of cheese");
    EXPECT_THROW(run.step(2), TransportError);
  } else {
    run.reducer.ready("w");
    const auto meet_and_wait = [&] {  // the barrier may fail, too
      meet();
      run.reducer.wait();
    };
    EXPECT_THROW(meet_and_wait(), TransportError);
    EXPECT_THROW(run.reducer.wait(), TransportError);
  }
  return state;
}

TEST_P(AfterError, QueriesAndStateRemainAvailable) {
  run_ranks(3, {}, [](Transport& transport) {
    Training run(transport, {.codec = "int8+ef", .progress = GetParam()});
    train_until_error(run, transport);
    EXPECT_EQ(run.reducer.statistics().steps, 2u);
    EXPECT_EQ(run.reducer.parameter_statistics().at(0).steps, 2u);
    EXPECT_EQ(run.reducer.explain().substr(0, 3), "w: ");
    EXPECT_EQ(run.reducer.explain_choice(), "");
    EXPECT_GT(run.reducer.residual_norms().at(0), 0.0);
    const ReducerState state = read_state(run.reducer.save_state());
    EXPECT_EQ(state.step, 2u);
    EXPECT_EQ(state.parameters.at(0).residual.size(), kCount);
  });
}

TEST_P(AfterError, TransactionalReducerKeepsStateOfLastCompleteStep) {
  run_ranks(3, {}, [](Transport& transport) {
    Training run(transport,
                 {.codec = "int8+ef", .transactional = Transactional::kOn, .progress = GetParam()});
    const auto state = train_until_error(run, transport);
    EXPECT_EQ(run.reducer.save_state(), state);
    if (run.rank == 2) return;  // its third step may not have begun: a discard would hit the second
    run.reducer.discard_step();
    EXPECT_EQ(run.reducer.save_state(), state);
  });
}

TEST_P(AfterError, MutatingAndCollectiveCallsThrow) {
  run_ranks(3, {}, [](Transport& transport) {
    Training run(transport, {.codec = "int8+ef", .progress = GetParam()});
    const auto state = train_until_error(run, transport);
    EXPECT_THROW(run.reducer.load_state(state), TransportError);
    EXPECT_THROW(run.reducer.save_portable_state(), TransportError);
    EXPECT_THROW(run.reducer.scale_residuals(2.0f), TransportError);
    EXPECT_THROW(run.reducer.wait(), TransportError);
    Values more(10);
    EXPECT_THROW(run.reducer.add("more", more), TransportError);
  });
}

}  // namespace
}  // namespace tersor::testing
