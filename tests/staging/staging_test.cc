// Staging of device memory under random pauses of streams: captures, allocations, and a stream
// without progress.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>

#include "comm/transport/host/block_pool.h"
#include "kernels/device/device.h"
#include "tests/device/device_bytes.h"
#include "tests/ptx_device/hooks.h"
#include "tests/transport/rank.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kStagedBytes = 4'001;

class Staging : public OnMemory {
 protected:
  /// Runs the body on three ranks, with other pauses of streams each time.
  void in_every_order(const RankFunction& body) const {
    for (std::uint64_t seed = 1; seed <= 20 && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      ptx_device_pauses(1, seed);
      run(3, body);
    }
    ptx_device_pauses(0, 1);
  }
};

INSTANTIATE_TEST_SUITE_P(Fabrics, Staging, ::testing::ValuesIn(fabrics()), fabric_name);

// Several rounds without waits. Each round reuses memory of the previous round.
TEST_P(Staging, BytesAreCorrectInEveryOrder) {
  in_every_order([](const Rank& rank) {
    std::deque<LateBytes> sends;
    std::deque<LateCopy> came;
    for (int round = 0; round < 5; ++round) {
      sends.emplace_back(pattern(kStagedBytes, rank.rank(), round), rank.stream());
      Handle handle =
          rank.transport.all_gather(rank.operation(), sends.back().span(), kStagedBytes);
      handle.wait_synchronize();
      for (const int peer : rank.peers()) came.emplace_back(handle.received(peer), rank.stream());
    }
    rank.synchronize();
    for (int round = 0; round < 5; ++round)
      for (const int peer : rank.peers()) {
        EXPECT_TRUE(equal_bytes(came.front().span(), pattern(kStagedBytes, peer, round))) << round;
        came.pop_front();
      }
  });
}

// Two consecutive sums in place.
TEST_P(Staging, SumsAreCorrectInEveryOrder) {
  in_every_order([](const Rank& rank) {
    RankBytes values(rank, std::vector<float>(3'000, 1.0f));
    for (int round = 0; round < 2; ++round)
      rank.transport.sum(rank.operation(), values.parts(3)).wait_synchronize();
    EXPECT_EQ(values.read<float>(), std::vector<float>(3'000, 9.0f));
  });
}

TEST_P(Staging, RejectsCapturedStream) {
  run(1, [](const Rank& rank) {
    const Operation operation = rank.operation();
    const auto stream = static_cast<cudaStream_t>(operation.stream.handle);
    rank.transport.barrier(operation).wait_synchronize();
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    EXPECT_THROW(rank.transport.barrier(operation), InvalidArgumentError);
    EXPECT_THROW(rank.transport.begin(operation), InvalidArgumentError);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cudaGraphDestroy(graph);
    rank.transport.barrier(operation).wait_synchronize();
  });
}

/// A gather and a sum at once on all ranks. Afterwards their memory is unused.
void one_step(const Rank& rank, RankBytes& bytes) {
  std::vector<Handle> handles;
  handles.push_back(rank.transport.all_gather(rank.operation(), bytes.span(), 20'000));
  handles.push_back(rank.transport.sum(rank.operation(), bytes.parts(3)));
  for (Handle& handle : handles) handle.wait_synchronize();
  rank.transport.barrier(rank.operation()).wait_synchronize();
  handles.clear();
  rank.synchronize();
  rank.transport.barrier(rank.operation()).wait_synchronize();
}

TEST_P(Staging, DoesNotAllocateAfterFirstStep) {
  const auto allocations = [] {
    return ptx_device_calls("cudaMalloc") + ptx_device_calls("cudaHostAlloc");
  };
  run(3, [&](const Rank& rank) {
    RankBytes bytes(rank, std::vector<float>(5'000, 1.0f));
    one_step(rank, bytes);
    const std::size_t after_first = allocations();
    rank.transport.barrier(rank.operation()).wait_synchronize();
    for (int step = 0; step < 5; ++step) one_step(rank, bytes);
    EXPECT_EQ(allocations(), after_first);
    rank.transport.barrier(rank.operation()).wait_synchronize();
  });
}

// The error names no rank, because this rank's own device is late.
TEST_P(Staging, ReportsStalledStreamAtTimeout) {
  run(1, [](const Rank& rank) {
    RankBytes values(rank, std::vector<float>(100));
    std::atomic<bool> open{false};
    Operation operation = rank.operation();
    ptx::queue_on(
        operation.stream.handle, [&] { open.wait(false); }, false);
    operation.timeout = 100ms;
    expect_error<TransportError>(
        [&] { rank.transport.sum(operation, values.parts(1)).wait_synchronize(); },
        "stream did not reach its copies within 100 ms");
    open = true;
    open.notify_all();
    rank.synchronize();
  });
}

// The error appears where a pool of device 1 selects the caller's device 0 again.
TEST(BlockPoolOfADevice, ToleratesErrorWhileRestoringDevice) {
  kernels::use_device(1);
  host::BlockPool pool(BlockMemory::kPinned);
  kernels::use_device(0);
  ptx_device_fail("cudaSetDevice:2=1");
  EXPECT_FALSE(pool.take(100).bytes().empty());
  EXPECT_STREQ(ptx_device_last_injected(), "cudaSetDevice");
  ptx_device_fail("");
  kernels::use_device(0);
}

}  // namespace
}  // namespace tersor::test
