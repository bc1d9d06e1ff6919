// Faults on every rank: disagreement, missing ranks, NCCL errors, invalid input.
#include "tests/nccl/nccl_ranks.h"

#include <tersor/collectives.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "kernels/device/device.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

TEST(NcclFaults, OperationMismatchFailsOnAllRanks) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 3, [](NcclRank& rank) {
    sum_up(rank, rank.operation(rank.rank() == 1 ? "reduce_scatter" : "allreduce"));
  });
  EXPECT_THAT(run.errors, Each(HasSubstr("ranks disagree")));
  EXPECT_THAT(run.errors[0], HasSubstr("rank 0 of 3 calls allreduce, but rank 1 calls "
                                       "reduce_scatter"));
  EXPECT_THAT(run.errors[1], HasSubstr("rank 0 calls allreduce, rank 2 calls allreduce"));
}

TEST(NcclFaults, ArgumentMismatchFailsOnAllRanks) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 2, [](NcclRank& rank) {
    sum_up(rank, rank.operation("allreduce", rank.rank() == 0 ? 1 : 2));
  });
  EXPECT_THAT(run.errors, Each(HasSubstr("calls allreduce with other arguments")));
}

TEST(NcclFaults, AllRanksReportDifferingOptions) {
  WatchedNccl nccl;
  std::vector<std::set<std::string>> named(3);
  run_nccl(nccl, 3, [&](NcclRank& rank) {
    const bool is_odd = rank.rank() == 1;
    const CollectiveOptions options{.codec = is_odd ? "int4" : "int8",
                                    .reduction = is_odd ? Reduction::kMean : Reduction::kSum};
    const DeviceBytes gradient(4000);
    try {
      allreduce(rank.transport, gradient.values(), options, rank.stream);
    } catch (const TransportError& error) {
      for (const Difference& one : error.disagreement())
        named[static_cast<std::size_t>(rank.rank())].insert(
            one.name + ": " + std::min(one.value, one.other_value) + ", " +
            std::max(one.value, one.other_value));
    }
  });
  EXPECT_THAT(named, Each(IsSupersetOf({"codec: int4, int8", "reduction: mean, sum"})));
}

/// The last rank joins the first sum and misses the second.
NcclRun lose_a_rank(WatchedNccl& nccl, Whose whose, std::chrono::milliseconds timeout) {
  return run_nccl(
      nccl, 3,
      [timeout](NcclRank& rank) {
        Operation operation = rank.operation("allreduce");
        sum_up(rank, operation);
        operation.timeout = timeout;
        if (rank.rank() != 2) sum_up(rank, operation);
        if (rank.rank() != 2) sum_up(rank, operation);  // reports the reason
      },
      whose);
}

TEST(NcclFaults, MissingRankCausesTimeout) {
  WatchedNccl nccl;
  const auto start = Clock::now();
  const NcclRun run = lose_a_rank(nccl, Whose::kCallers, 300ms);
  EXPECT_GE(Clock::now() - start, 300ms);
  for (int rank : {0, 1})
    EXPECT_THAT(run.errors[static_cast<std::size_t>(rank)],
                AllOf(HasSubstr("allreduce on rank " + std::to_string(rank) + " of 3"),
                      HasSubstr("not done after 300 ms on the device"),
                      Not(HasSubstr("abort your communicator"))));
}

TEST(NcclFaults, RevokesCallerCommunicatorAndAbortsOwn) {
  {
    WatchedNccl nccl;
    lose_a_rank(nccl, Whose::kCallers, 100ms);
    EXPECT_EQ(nccl.calls("ncclCommAbort"), 0);
    EXPECT_EQ(nccl.calls("ncclCommRevoke"), 2);
    EXPECT_THAT(nccl.misuses(), IsEmpty());
  }
  WatchedNccl nccl;
  lose_a_rank(nccl, Whose::kOwn, 100ms);
  EXPECT_EQ(nccl.calls("ncclCommAbort"), 2);
  EXPECT_EQ(nccl.calls("ncclCommRevoke"), 0);
  EXPECT_THAT(nccl.misuses(), IsEmpty());
  EXPECT_EQ(nccl.open_communicators(), 0);
}

// Without ncclCommRevoke, the caller's communicators are not freed. The error explains the required
// action.
TEST(NcclFaults, OlderNcclRequiresAbortByCaller) {
  WatchedNccl nccl(22'703);
  const std::vector<ncclComm_t> clique = nccl.make_clique(2);
  std::vector<std::string> errors(2);
  std::barrier<> meeting(2);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      kernels::use_device(static_cast<int>(i));
      const Stream stream;
      const auto owned_transport = make_nccl_transport(clique[i]);
      Transport& transport = *owned_transport;
      NcclRank rank{transport, stream.view(), clique[i], meeting};
      Operation operation = rank.operation("allreduce");
      sum_up(rank, operation);
      operation.timeout = 100ms;
      DeviceBytes values(4);
      values.fill(std::vector<float>{1.0f}, stream.view());
      if (i == 0) transport.sum(operation, std::vector<ValueSpan>{values.values(), {}});
      if (i == 0) errors[i] = wait_for_fault(transport);
      rank.meet();
      if (i == 1) errors[i] = error_of<TransportError>([&] { transport.progress(); });
      nccl.table().comm_abort(clique[i]);
      kernels::synchronize(stream.view());
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(errors[0], HasSubstr("abort your communicator to end its waiting calls: NCCL 2.27.3 "
                                   "has no ncclCommRevoke (new in 2.28.9)"));
  EXPECT_EQ(errors[1], "");
}

TEST(NcclFaults, NcclErrorIsSticky) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 2, [&](NcclRank& rank) {
    sum_up(rank, rank.operation());
    nccl.break_down(rank.communicator, ncclRemoteError);
    wait_for_fault(rank.transport);
    EXPECT_THAT(error_of<TransportError>([&] { sum_up(rank, rank.operation()); }),
                HasSubstr("NCCL reports remote process exited"));
    EXPECT_THROW(rank.transport.channel(), TransportError);
    EXPECT_THROW(rank.transport.begin(rank.operation()), TransportError);
    sum_up(rank, rank.operation());
  });
  EXPECT_THAT(run.errors, Each(HasSubstr("NCCL reports remote process exited or there was a "
                                         "network error (socket closed)")));
}

TEST(NcclFaults, AbortRevokesCommunicatorAndFailsNextCall) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 2, [&](NcclRank& rank) {
    rank.transport.abort("the trainer has had enough");
    EXPECT_TRUE(nccl.is_revoked(rank.communicator));
    sum_up(rank, rank.operation());
  });
  EXPECT_THAT(run.errors[1], HasSubstr("rank 1 of 2 gave up: the trainer has had enough"));
}

// NCCL makes connections at the first use, with waits on the host.
TEST(NcclFaults, BlockingNcclCallFailsAtTimeout) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 2, [&](NcclRank& rank) {
    Operation operation = rank.operation("allreduce");
    sum_up(rank, operation);
    operation.timeout = 200ms;
    nccl.block_next_group(rank.communicator);
    sum_up(rank, operation);
  });
  EXPECT_THAT(run.errors, Each(HasSubstr("a call of NCCL did not return in time")));
}

TEST(NcclFaults, InvalidFrameFailsNextCall) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 2, [&](NcclRank& rank) {
    sum_up(rank, rank.operation());
    if (rank.rank() == 1) return;
    rank.transport.fault()->times = 1;
    rank.transport.fault()->kind = FrameFault::kHeader;
    EXPECT_THROW(rank.transport.begin(rank.operation()), WireError);
    EXPECT_THROW(rank.transport.begin(rank.operation()), TransportError);
  });
  EXPECT_EQ(run.errors, std::vector<std::string>(2));
}

TEST(NcclFaults, RejectsInvalidArgumentsAndStaysUsable) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 2, [](NcclRank& rank) {
    std::vector<std::byte> host(100);
    Operation operation = rank.operation();
    const auto refusal = [&](const std::function<void()>& call) {
      return error_of<InvalidArgumentError>(call);
    };
    EXPECT_THAT(refusal([&] { rank.transport.all_gather(operation, host, 100); }),
                HasSubstr("the pointer is to host memory"));
    DeviceBytes memory(100);
    EXPECT_THAT(refusal([&] { rank.transport.all_gather(operation, memory.span(), 101); }),
                HasSubstr("full capacity"));
    EXPECT_THAT(refusal([&] { rank.transport.send(operation, rank.rank(), memory.span()); }),
                HasSubstr("is not a peer"));
    EXPECT_THAT(refusal([&] { rank.transport.receive_any(operation, 100); }),
                HasSubstr("no receive_any"));
    EXPECT_THAT(refusal([&] {
                  rank.transport.split(std::vector<int>{1, 0});
                }),
                HasSubstr("ascending"));
    std::vector<float> values(10);
    const std::vector<ValueSpan> mixed = {ValueSpan(values), memory.values()};
    EXPECT_THAT(refusal([&] { rank.transport.sum(operation, mixed); }),
                HasSubstr("all in device memory"));
    const std::vector<ValueSpan> two_types = {
        memory.values().subspan(0, 10),
        ValueSpan(memory.span().data() + 40, 10, Dtype::kI32, Memory::kDevice)};
    EXPECT_THAT(refusal([&] { rank.transport.sum(operation, two_types); }),
                HasSubstr("parts of one dtype"));
    operation.memory = Memory::kHost;
    EXPECT_THAT(refusal([&] { rank.transport.send(operation, 1 - rank.rank(), host); }),
                HasSubstr("NCCL sends device memory"));
    kernels::use_device(2);
    const Stream elsewhere;
    kernels::use_device(rank.rank());
    operation = rank.operation();
    operation.stream = elsewhere.view();
    EXPECT_THAT(refusal([&] { rank.transport.barrier(operation); }),
                HasSubstr("the stream belongs to device 2, but the current device is " +
                          std::to_string(rank.rank())));
    sum_up(rank, rank.operation());
  });
  EXPECT_EQ(run.errors, std::vector<std::string>(2));
}

TEST(NcclFaults, RejectsUnusableCommunicators) {
  WatchedNccl nccl;
  const ncclComm_t communicator = nccl.make_clique(1).front();
  const auto refusal = [](ncclComm_t handle) {
    return error_of<InvalidArgumentError>([&] { make_nccl_transport(handle); });
  };
  EXPECT_THAT(refusal(nullptr), HasSubstr("the communicator is null"));
  kernels::use_device(2);
  EXPECT_THAT(refusal(communicator),
              HasSubstr("the communicator is for device 0, but the current device is 2"));
  kernels::use_device(0);
  nccl.break_down(communicator, ncclInternalError);
  EXPECT_THAT(refusal(communicator), HasSubstr("was aborted or has failed"));
}

TEST(NcclFaults, IncompleteCommunicatorCreationTimesOut) {
  WatchedNccl nccl;
  const std::filesystem::path file =
      ::testing::TempDir() + "tersor_nccl_alone_" + std::to_string(getpid());
  std::filesystem::remove(file);
  EXPECT_THAT(error_of<TransportError>([&] { NcclCommunicator::from_file(file, 0, 2, 100ms); }),
              HasSubstr("making a communicator on rank 0 of 2: not all ranks joined in time"));
  EXPECT_EQ(nccl.open_communicators(), 0);
  EXPECT_THAT(
      error_of<InvalidArgumentError>([&] { NcclCommunicator::from_file(file, 0, 2, 100ms); }),
      HasSubstr("exists: use a new name"));
  std::filesystem::remove(file);
  EXPECT_THAT(error_of<TransportError>([&] { NcclCommunicator::from_file(file, 1, 2, 100ms); }),
              HasSubstr("did not write"));
}

TEST(NcclFaults, IncompleteChannelCreationTimesOut) {
  WatchedNccl nccl;
  const std::vector<ncclComm_t> clique = nccl.make_clique(2);
  std::vector<std::string> errors(2);
  std::atomic<int> running{2};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      kernels::use_device(static_cast<int>(i));
      const auto owned_transport = make_nccl_transport(clique[i], 3s);
      Transport& transport = *owned_transport;
      if (i == 0) errors[i] = error_of<TransportError>([&] { transport.channel(); });
      for (--running; running > 0;) std::this_thread::sleep_for(1ms);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(errors[0], HasSubstr("channel on rank 0 of 2: not all ranks joined within 3000 ms"));
}

}  // namespace
}  // namespace tersor::test
