// How communicators are stopped once something has gone wrong, and what a rank then reads.
#include "tests/nccl/nccl_ranks.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Work that was stopped may be left over, with what it stands for.
class NcclStops : public ::testing::Test {
 protected:
  ~NcclStops() override { emulator::restart(emulator::seed()); }
};

/// Two communicators take turns on one stream, and rank 1 does not come: what the first is told to
/// end stands behind what the other waits for.
void take_turns_alone(NcclRank& rank) {
  const auto part = rank.transport.split(std::vector<int>{0, 1});
  Operation operation = rank.operation("allreduce");
  for (Transport* each : {part.get(), &rank.transport}) each->barrier(operation).wait_synchronize();
  emulator::synchronize(rank.stream);
  if (rank.rank() == 1) return;
  operation.timeout = 200ms;
  rank.transport.begin(operation);
  for (Transport* each : {part.get(), &rank.transport, part.get()})
    each->barrier(operation).wait_synchronize();
  rank.transport.end(operation);
  emulator::synchronize(rank.stream);
  EXPECT_NE(wait_for_fault(rank.transport), kNothing);
}

TEST_F(NcclStops, NoCommunicatorWaitsForAnother) {
  for (const Whose whose : {Whose::kCallers, Whose::kOwn}) {
    FakeNccl nccl;
    const NcclRun run = run_nccl(nccl, 2, take_turns_alone, whose);
    EXPECT_THAT(run.errors, Each(std::string()));
    EXPECT_THAT(nccl.misuses(), IsEmpty());
    emulator::restart(emulator::seed());
  }
}

// A revoke may be over before a call that blocks has seen it.
TEST_F(NcclStops, ACallThatDoesNotHearOfTheRevokeIsAborted) {
  FakeNccl nccl;
  const auto body = [&](NcclRank& rank) {
    Operation operation = rank.operation("allreduce");
    sum_up(rank, operation);
    operation.timeout = 200ms;
    nccl.block_next_group_deaf(rank.communicator);
    sum_up(rank, operation);
  };
  const NcclRun run = run_nccl(nccl, 2, body, Whose::kOwn);
  EXPECT_THAT(run.errors, Each(HasSubstr("a call of NCCL did not come back in time")));
  EXPECT_EQ(nccl.calls("ncclCommRevoke"), 2);
  EXPECT_EQ(nccl.calls("ncclCommAbort"), 2);
  EXPECT_EQ(nccl.open_communicators(), 0);
}

}  // namespace
}  // namespace tersor::test
