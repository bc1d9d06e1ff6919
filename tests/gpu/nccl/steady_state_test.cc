// After warm-up, calls over NCCL neither wait nor allocate. Captured calls give the same bits as
// direct calls, including state.

#include "tests/gpu/nccl/reduction.h"
#include "tests/support/grid.h"

namespace tersor::test {
namespace {

const std::size_t kCount = grid_is_small() ? 200'001 : 1'000'001;
constexpr int kReplays = 3;

std::vector<Case> cases(int ranks) {
  std::vector<int> hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back(rank * 2 / ranks);
  return {
      {Algorithm::kTwoShot, "int8+ef", kCount},
      {Algorithm::kOneShot, "topk:density=0.01+ef", kCount},
      {Algorithm::kTwoShot, "int4", kCount, Dtype::kBf16},
      {.algorithm = Algorithm::kHierarchical, .codec = "int8", .count = kCount, .hosts = hosts}};
}

const Registered kGraphs("graphs", [](const RankIdentity& identity) {
  const auto owned_transport = make_nccl_transport(meet(identity));
  Transport& transport = *owned_transport;
  const Stream stream;
  for (const Case& wanted : cases(identity.ranks)) {
    const std::vector<Values> expected = reduced_on_cpu(wanted, identity.ranks, 1 + kReplays);
    RepeatedAllreduce on_device(wanted, transport, {Memory::kDevice, stream.view()});
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
  for (const Case& wanted : cases(identity.ranks)) {
    RepeatedAllreduce on_device(wanted, transport, {Memory::kDevice, stream.view()});
    for (int call = 0; call < 2; ++call) on_device.call();
    stream.synchronize();
    const std::size_t before = free_bytes(transport);
    for (int call = 0; call < kCalls; ++call) on_device.call();
    stream.synchronize();
    const std::size_t after = free_bytes(transport);
    require(after >= before, wanted.codec + ": calls took " + std::to_string(before - after) +
                                 " bytes of device memory");
  }
});

class NcclSteadyState : public OverNccl {};

/// Global capture forbids waits and allocations in all threads.
TEST_F(NcclSteadyState, GraphsMatchCallsBitForBit) { expect_passes(kGraphs, 2); }
TEST_F(NcclSteadyState, FourRanksCapture) { expect_passes(kGraphs, 4); }
TEST_F(NcclSteadyState, CallsTakeNoMemory) { expect_passes(kAllocations, 2); }

}  // namespace
}  // namespace tersor::test
