// The fabrics for the suites of tests/device_comm: the transport over the NCCL replacement.
#include "tests/device_comm/fabric.h"
#include "tests/nccl/nccl_ranks.h"

namespace tersor::test {

std::vector<DeviceFabric> device_fabrics() {
  const auto run = [](int ranks, const DeviceBody& body) {
    on_nccl(ranks, [&](NcclRank& rank) { body(rank.transport, rank.stream); });
  };
  return {{.name = "nccl", .run = run, .own_sums = false}};
}

}  // namespace tersor::test
