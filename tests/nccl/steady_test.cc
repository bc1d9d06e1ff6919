// Steps after warm-up can be captured in graphs, and the deadline also applies to replays. comm/
// has the counts of allocations and host waits.
#include "tests/nccl/nccl_ranks.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::size_t kCount = 20'000;  // large enough for registration with NCCL
constexpr std::size_t kSteadyBytes = kCount * sizeof(float);

/// The memory of a step: the sum of all inputs, and the copy received from the next rank.
struct StepMemory {
  DeviceBytes input{kSteadyBytes};
  DeviceBytes sum{kSteadyBytes};
  DeviceBytes copy{kSteadyBytes};

  void fill(const NcclRank& rank, int step) {
    input.fill(std::vector<float>(kCount, value(rank.rank(), step)), rank.stream);
  }
  static float value(int rank, int step) { return static_cast<float>(100 * step + rank); }

  void expect(const NcclRank& rank, int step) {
    const int next = (rank.rank() + 1) % rank.ranks();
    float total = 0;
    for (int other = 0; other < rank.ranks(); ++other) total += value(other, step);
    EXPECT_EQ(fetch<float>(copy.span(), rank.stream),
              std::vector<float>(kCount, value(next, step)));
    EXPECT_EQ(fetch<float>(sum.span(), rank.stream), std::vector<float>(kCount, total));
  }
};

/// A collective: an exchange with one kept message, and a sum.
void run_step(NcclRank& rank, StepMemory& memory) {
  const Operation operation = rank.operation("step");
  const auto ranks = static_cast<std::size_t>(rank.ranks());
  rank.transport.begin(operation);
  const std::vector<ConstByteSpan> sends(ranks, memory.input.span());
  const std::vector<std::size_t> capacities(ranks, kSteadyBytes);
  Handle exchange = rank.transport.all_to_all(operation, sends, capacities);
  kernels::copy_bytes(memory.sum.span().data(), memory.input.span().data(), kSteadyBytes,
                      rank.stream);
  std::vector<ValueSpan> parts(ranks);
  parts[0] = memory.sum.values();
  Handle sum = rank.transport.sum(operation, parts);
  exchange.wait_synchronize();
  kernels::copy_bytes(memory.copy.span().data(),
                      exchange.received((rank.rank() + 1) % rank.ranks()).data(), kSteadyBytes,
                      rank.stream);
  sum.wait_synchronize();
  rank.transport.end(operation);
}

void warm_up(NcclRank& rank, StepMemory& memory) {
  for (int step = 0; step < 2; ++step) {
    memory.fill(rank, step);
    run_step(rank, memory);
    memory.expect(rank, step);
  }
}

TEST(NcclSteady, RegistersMemoryOnce) {
  WatchedNccl nccl;
  int warm = 0;
  const NcclRun run = run_nccl(nccl, 2, [&](NcclRank& rank) {
    StepMemory memory;
    warm_up(rank, memory);
    rank.transport.barrier({.name = "barrier"}).wait_synchronize();
    if (rank.rank() == 0) warm = nccl.calls("ncclCommRegister");
    rank.transport.barrier({.name = "barrier"}).wait_synchronize();
    warm_up(rank, memory);
  });
  EXPECT_EQ(run.errors, std::vector<std::string>(2));
  EXPECT_EQ(warm, 2);
  EXPECT_EQ(nccl.calls("ncclCommRegister"), warm);
  EXPECT_EQ(nccl.open_registrations(), 0);
}

TEST(NcclSteady, UsesMemoryAfterFailedRegistration) {
  WatchedNccl nccl;
  nccl.refuse_registrations();
  const NcclRun run = run_nccl(nccl, 2, [](NcclRank& rank) {
    StepMemory memory;
    warm_up(rank, memory);
  });
  EXPECT_EQ(run.errors, std::vector<std::string>(2));
}

TEST(NcclSteady, StepIsCapturedAndReplayed) {
  for_each_order(5, [] {
    on_nccl(3, [](NcclRank& rank) {
      StepMemory memory, other;
      warm_up(rank, memory);
      const Graph graph(rank, [&] { run_step(rank, memory); });
      for (int step = 2; step < 5; ++step) {
        memory.fill(rank, step);
        graph.replay(rank.stream);
        memory.expect(rank, step);
        // Messages received in between must not use the graph's receive memory.
        other.fill(rank, step + 10);
        const std::vector<ConstByteSpan> sends(3, other.input.span());
        const std::vector<std::size_t> capacities(3, kSteadyBytes);
        Handle kept = rank.transport.all_to_all(rank.operation("step"), sends, capacities);
        kept.wait_synchronize();
        graph.replay(rank.stream);
        const int next = (rank.rank() + 1) % 3;
        EXPECT_EQ(fetch<float>(kept.received(next), rank.stream),
                  std::vector<float>(kCount, StepMemory::value(next, step + 10)));
      }
    });
  });
}

TEST(NcclSteady, RejectsCaptureOfNewOperation) {
  on_nccl(2, [](NcclRank& rank) {
    StepMemory memory;
    warm_up(rank, memory);
    const Graph refused(rank, [&] {
      expect_error<InvalidArgumentError>(
          [&] { rank.transport.begin(rank.operation("unheard of")); },
          "call it once before capturing");
    });
  });
}

// If NCCL cannot revoke communicators, the transport creates nonblocking communicators.
TEST(NcclSteady, RunsOnNonblockingCommunicators) {
  WatchedNccl nccl(22'703);
  const NcclRun run = run_nccl(nccl, 2, [](NcclRank& rank) {
    const auto channel = rank.transport.channel();
    NcclRank own{*channel, rank.stream, rank.communicator, rank.meeting};
    StepMemory memory;
    warm_up(own, memory);
  });
  EXPECT_EQ(run.errors, std::vector<std::string>(2));
  EXPECT_EQ(nccl.calls("ncclCommSplit"), 0);
  EXPECT_EQ(nccl.open_communicators(), 2);  // the caller's
}

// A graph's memory is reserved for the graph, so a second graph finds no memory.
TEST(NcclSteady, EachGraphRequiresOwnWarmUp) {
  on_nccl(2, [](NcclRank& rank) {
    StepMemory memory;
    warm_up(rank, memory);
    const Graph first(rank, [&] { run_step(rank, memory); });
    const Graph refused(rank, [&] {
      EXPECT_THROW(
          rank.transport.all_gather(rank.operation("step"), memory.input.span(), kSteadyBytes),
          InvalidArgumentError);
    });
    warm_up(rank, memory);
    const Graph second(rank, [&] { run_step(rank, memory); });
    for (const Graph* graph : {&first, &second, &first}) {
      memory.fill(rank, 9);
      graph->replay(rank.stream);
      memory.expect(rank, 9);
    }
  });
}

TEST(NcclSteady, DeadlineCoversReplays) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 2, [](NcclRank& rank) {
    StepMemory memory;
    warm_up(rank, memory);
    rank.transport.barrier(rank.operation("barrier")).wait_synchronize();
    const Graph graph(rank, [&] {
      Operation operation = rank.operation("barrier");
      operation.timeout = 3s;
      rank.transport.begin(operation);
      rank.transport.barrier(operation).wait_synchronize();
      rank.transport.end(operation);
    });
    rank.meet();
    graph.replay(rank.stream);
    kernels::synchronize(rank.stream);
    rank.transport.progress();
    rank.meet();
    if (rank.rank() == 0) {
      graph.replay(rank.stream);
      kernels::synchronize(rank.stream);
      rank.transport.progress();
    }
  });
  EXPECT_THAT(run.errors[0], HasSubstr("barrier on rank 0 of 2: not done after 3000 ms"));
  EXPECT_EQ(run.errors[1], "");
}

}  // namespace
}  // namespace tersor::test
