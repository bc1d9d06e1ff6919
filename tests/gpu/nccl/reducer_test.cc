// The reducer with device gradients over NCCL: the same bits as with CPU threads in every step,
// also across a checkpoint.

#include "tests/device_comm/model.h"
#include "tests/gpu/nccl/ranks.h"

#include <tersor/inprocess.h>
#include <tersor/reducer.h>

#include <memory>

namespace tersor::test {
namespace {

constexpr int kSteps = 6, kSavedBefore = 3;

/// The gradients after each step. A new reducer takes over before step kSavedBefore.
std::vector<Values> train(Transport& transport, const Location& location) {
  // Equal codec and algorithm for all parameters, because NCCL's own sums have another order.
  ReducerOptions options = options_of(location);
  options.rules = {{"*", "int8+ef"}};
  options.algorithm = Algorithm::kTwoShot;
  auto model = std::make_unique<Model>(transport, location, options);
  std::vector<Values> steps;
  for (int step = 0; step < kSteps; ++step) {
    if (step == kSavedBefore) {
      const std::vector<std::byte> state = model->reducer().save_state();
      model.reset();
      model = std::make_unique<Model>(transport, location, options);
      model->reducer().load_state(state);
    }
    steps.push_back(model->step(step));
  }
  return steps;
}

const Registered kReducer("reducer", [](const RankIdentity& identity) {
  std::vector<Values> expected;
  run_ranks(identity.ranks, {}, [&](Transport& threads) {
    auto own = train(threads, {});
    if (threads.rank() == 0) expected = std::move(own);
  });
  const auto transport = make_nccl_transport(meet(identity));
  const Stream stream;
  const auto found = train(*transport, {Memory::kDevice, stream.view()});
  for (std::size_t step = 0; step < expected.size(); ++step)
    require(found[step] == expected[step],
            "step " + std::to_string(step) + " differs from the CPU's");
});

class NcclReducer : public OverNccl, public ::testing::WithParamInterface<int> {};

TEST_P(NcclReducer, StepsHaveTheCpusBitsAcrossACheckpoint) { expect_passes(kReducer, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Ranks, NcclReducer, ::testing::Values(2, 4));

}  // namespace
}  // namespace tersor::test
