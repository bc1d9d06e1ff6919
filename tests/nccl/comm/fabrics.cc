// The fabric for the suites of tests/device_comm: the transport over the NCCL replacement.
#include "tests/nccl/nccl_ranks.h"

namespace tersor::test {

std::vector<Fabric> fabrics() {
  const auto run = [](int ranks, const Body& body) {
    on_nccl(ranks, [&](NcclRank& rank) { body(rank.transport); });
  };
  return {{.name = "Nccl", .run = run, .memory = Memory::kDevice, .own_sums = false}};
}

}  // namespace tersor::test
