// Stopping communicators after a fault, and the values read by a rank afterwards.
#include "tests/nccl/nccl_ranks.h"

#include <tersor/collectives.h>

#include <cmath>
#include <functional>
#include <memory>

namespace tersor::test {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Two communicators alternate on one stream, and rank 1 is missing. The end of the first
/// communicator's work is queued after a wait for the other communicator.
void take_turns_alone(NcclRank& rank) {
  const auto part = rank.transport.split(std::vector<int>{0, 1});
  Operation operation = rank.operation("allreduce");
  for (Transport* each : {part.get(), &rank.transport}) each->barrier(operation).wait_synchronize();
  kernels::synchronize(rank.stream);
  if (rank.rank() == 1) return;
  operation.timeout = 200ms;
  rank.transport.begin(operation);
  for (Transport* each : {part.get(), &rank.transport, part.get()})
    each->barrier(operation).wait_synchronize();
  rank.transport.end(operation);
  kernels::synchronize(rank.stream);
  EXPECT_NE(wait_for_fault(rank.transport), "");
}

TEST(NcclStops, NoCommunicatorWaitsForAnother) {
  for (const Whose whose : {Whose::kCallers, Whose::kOwn}) {
    WatchedNccl nccl;
    const NcclRun run = run_nccl(nccl, 2, take_turns_alone, whose);
    EXPECT_THAT(run.errors, Each(std::string()));
    EXPECT_THAT(nccl.misuses(), IsEmpty());
  }
}

// A revoke may end before a blocking call notices the revoke.
TEST(NcclStops, AbortsUnresponsiveCallAfterRevoke) {
  WatchedNccl nccl;
  const auto body = [&](NcclRank& rank) {
    Operation operation = rank.operation("allreduce");
    sum_up(rank, operation);
    operation.timeout = 200ms;
    nccl.block_next_group_deaf(rank.communicator);
    sum_up(rank, operation);
  };
  const NcclRun run = run_nccl(nccl, 2, body, Whose::kOwn);
  EXPECT_THAT(run.errors, Each(HasSubstr("a call of NCCL did not return in time")));
  EXPECT_EQ(nccl.calls("ncclCommRevoke"), 2);
  EXPECT_EQ(nccl.calls("ncclCommAbort"), 2);
  EXPECT_EQ(nccl.open_communicators(), 0);
}

/// Rank 1 misses the second step. The receive memory of rank 0 still contains data of the first
/// step.
void lose_the_second_step(NcclRank& rank, Algorithm algorithm) {
  constexpr std::size_t kCount = 3000;
  DeviceBytes gradient(kCount * sizeof(float));
  CollectiveWorkspace workspace;
  CollectiveOptions options{.codec = "int8", .algorithm = algorithm, .workspace = &workspace};
  const auto step = [&] {
    gradient.fill(std::vector<float>(kCount, 1.0f), rank.stream);
    allreduce(rank.transport, gradient.values(), options, rank.stream);
    return fetch<float>(gradient.span(), rank.stream);
  };
  EXPECT_EQ(step(), std::vector<float>(kCount, 2.0f));
  if (rank.rank() == 1) return;
  options.timeout = 200ms;
  for (const float value : step()) ASSERT_TRUE(std::isnan(value));
  EXPECT_THAT(wait_for_fault(rank.transport), HasSubstr("allreduce on rank 0 of 2: not done"));
}

TEST(NcclStops, DoesNotReuseFramesFromEarlierStep) {
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot})
    for_each_order(5, [&] {
      WatchedNccl nccl;
      const NcclRun run =
          run_nccl(nccl, 2, [&](NcclRank& rank) { lose_the_second_step(rank, algorithm); });
      EXPECT_THAT(run.errors, Each(std::string()));
    });
}

// Replays are not library calls. The transport's thread detects the faults reported by their
// kernels.
TEST(NcclStops, ProgressReportsDamagedFrame) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 2, [&](NcclRank& rank) {
    sum_up(rank, rank.operation());
    rank.transport.fault()->times = 1;
    __atomic_store_n(&rank.transport.fault()->kind, FrameFault::kHeader, __ATOMIC_RELEASE);
    while (!nccl.is_revoked(rank.communicator)) std::this_thread::sleep_for(1ms);
    EXPECT_THROW(rank.transport.progress(), WireError);
    EXPECT_THROW(rank.transport.progress(), TransportError);
  });
  EXPECT_THAT(run.errors, Each(std::string()));
}

TEST(NcclStops, HostGatherTimesOutWhenPolled) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 2, [](NcclRank& rank) {
    if (rank.rank() == 1) return;
    const std::uint64_t own = 7;
    Handle gathered = rank.transport.all_gather({.name = "control", .timeout = 200ms},
                                                std::as_bytes(std::span(&own, 1)), sizeof own);
    while (!gathered.test()) kernels::sleep_between_polls();
  });
  EXPECT_THAT(run.errors[0],
              HasSubstr("control on rank 0 of 2: not all ranks joined within 200 ms"));
}

/// Rank 0 destroys a channel during the replay of a sum. Rank 1 replays the sum after `before` on
/// its stream, or never without `before`.
void destroy_during_replay(NcclRank& rank, std::unique_ptr<Transport> channel,
                           const std::function<void()>& before) {
  DeviceBytes values(400);
  values.fill(std::vector<float>(100, 1.0f), rank.stream);
  Operation operation = rank.operation("replayed");
  operation.timeout = before ? 60s : 300ms;
  const std::vector<ValueSpan> parts = {values.values(), {}};
  const auto sum = [&] { channel->sum(operation, parts).wait_synchronize(); };
  sum();
  kernels::synchronize(rank.stream);
  const Graph graph(rank, sum);
  if (rank.rank() == 1 && before) ptx::queue_on(rank.stream.handle, before, false);
  if (rank.rank() == 0 || before) graph.replay(rank.stream);
  if (rank.rank() == 1) kernels::synchronize(rank.stream);
  std::this_thread::sleep_for(100ms);  // lets the replay begin
  channel.reset();
  kernels::synchronize(rank.stream);
  rank.meet();
}

TEST(NcclStops, DestroyedTransportWaitsForReplays) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 2, [&](NcclRank& rank) {
    auto channel = rank.transport.channel();
    rank.meet();
    const int finalized = nccl.calls("ncclCommFinalize");
    rank.meet();
    destroy_during_replay(rank, std::move(channel), [&nccl, finalized] {
      std::this_thread::sleep_for(500ms);
      EXPECT_EQ(nccl.calls("ncclCommFinalize"), finalized);
    });
    rank.transport.progress();
  });
  EXPECT_THAT(run.errors, Each(std::string()));
}

TEST(NcclStops, WaitForReplayEndsAtDeadline) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 2, [&](NcclRank& rank) {
    destroy_during_replay(rank, rank.transport.channel(), {});
    if (rank.rank() == 0)
      EXPECT_THAT(error_of<TransportError>([&] { rank.transport.progress(); }),
                  HasSubstr("replayed on rank 0 of 2: not done after 300 ms"));
  });
  EXPECT_THAT(run.errors, Each(std::string()));
}

// CUDA also reports an error of an earlier kernel where a thread selects its device.
TEST(NcclStops, AbortsCommunicatorsOnBrokenDevice) {
  WatchedNccl nccl;
  const auto body = [&](NcclRank& rank) {
    sum_up(rank, rank.operation());
    rank.meet();
    if (rank.rank() == 0) ptx_device_fail("cudaDeviceSynchronize:1=700");
    if (rank.rank() == 0) EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    rank.meet();
    EXPECT_EQ(cudaSetDevice(rank.rank()), cudaErrorIllegalAddress);
    rank.transport.abort("the device is broken");
    rank.meet();
    if (rank.rank() == 0) ptx_device_repair();
    rank.meet();
  };
  const NcclRun run = run_nccl(nccl, 2, body, Whose::kOwn);
  EXPECT_THAT(run.errors, Each(std::string()));
  EXPECT_EQ(nccl.calls("ncclCommAbort"), 2);
  EXPECT_EQ(nccl.open_communicators(), 0);
}

TEST(NcclStops, TheWatcherStartsOnABrokenDevice) {
  WatchedNccl nccl;
  const ncclComm_t communicator = nccl.make_clique(1).front();
  ptx_device_fail("cudaSetDevice:*=1");
  {
    const auto transport = make_nccl_transport(communicator);
    while (*ptx_device_last_injected() == 0) kernels::sleep_between_polls();
    EXPECT_NO_THROW(transport->progress());
  }
  ptx_device_fail("");
}

TEST(NcclStops, RejectsRevokedCommunicator) {
  WatchedNccl nccl;
  const ncclComm_t communicator = nccl.make_clique(1).front();
  nccl.table().comm_revoke(communicator, 0);
  EXPECT_THAT(error_of<TransportError>([&] { make_nccl_transport(communicator); }),
              HasSubstr("NCCL refuses revoked communicators with this error"));
}

}  // namespace
}  // namespace tersor::test
