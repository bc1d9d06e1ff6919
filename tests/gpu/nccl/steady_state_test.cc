// After warm-up, calls over NCCL neither wait nor allocate. Captured calls give the same bits as
// direct calls, including state.

#include "tests/gpu/nccl/reduction.h"

namespace tersor::test {
namespace {

constexpr std::size_t kCount = 1'000'001;
constexpr int kReplays = 3;

std::vector<Reduction> reductions(int ranks) {
  std::vector<int> hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back(rank * 2 / ranks);
  return {{"int8+ef", Algorithm::kTwoShot, Dtype::kF32, kCount},
          {"topk:density=0.01+ef", Algorithm::kOneShot, Dtype::kF32, kCount},
          {"int4", Algorithm::kTwoShot, Dtype::kBf16, kCount},
          {"int8", Algorithm::kHierarchical, Dtype::kF32, kCount, hosts}};
}

const Registered kGraphs("graphs", [](const RankIdentity& identity) {
  const auto owned_transport = make_nccl_transport(meet(identity));
  Transport& transport = *owned_transport;
  const Stream stream;
  for (const Reduction& reduction : reductions(identity.ranks)) {
    const std::vector<Bytes> expected = reduced_on_cpu(reduction, identity.ranks, 1 + kReplays);
    DeviceReduction on_device(reduction, transport, stream);
    on_device.call();
    on_device.require_bits(expected.front());
    const Graph graph(stream, [&] { on_device.call(); });
    for (int replay = 1; replay <= kReplays; ++replay) {
      graph.replay(stream);
      on_device.require_bits(expected[static_cast<std::size_t>(replay)]);
    }
  }
});

/// Synchronizes with the other ranks, because ranks on the same GPU must not allocate during the
/// measurement.
std::size_t free_bytes(Transport& transport) {
  const auto in_step = [&] {
    transport.barrier({.name = "counting", .tag = transport.reserve_tags(1)}).wait_synchronize();
  };
  in_step();
  std::size_t free = 0, all = 0;
  check_cuda(cudaMemGetInfo(&free, &all));
  in_step();
  return free;
}

const Registered kAllocations("allocations", [](const RankIdentity& identity) {
  constexpr int kCalls = 5;
  const auto owned_transport = make_nccl_transport(meet(identity));
  Transport& transport = *owned_transport;
  const Stream stream;
  for (const Reduction& reduction : reductions(identity.ranks)) {
    DeviceReduction on_device(reduction, transport, stream);
    for (int call = 0; call < 2; ++call) on_device.call();
    stream.synchronize();
    const std::size_t before = free_bytes(transport);
    for (int call = 0; call < kCalls; ++call) on_device.call();
    stream.synchronize();
    const std::size_t after = free_bytes(transport);
    require(after >= before, reduction.text() + ": calls took " + std::to_string(before - after) +
                                 " bytes of device memory");
  }
});

class NcclSteadyState : public OverNccl {};

/// Global capture forbids waits and allocations in all threads.
TEST_F(NcclSteadyState, GraphsGiveTheBitsOfCalls) { expect_passes(kGraphs, 2); }
TEST_F(NcclSteadyState, FourRanksCaptureToo) { expect_passes(kGraphs, 4); }
TEST_F(NcclSteadyState, CallsTakeNoMemory) { expect_passes(kAllocations, 2); }

}  // namespace
}  // namespace tersor::test
