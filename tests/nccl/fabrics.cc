// The fabrics of ranks on threads over the NCCL replacement, each with a device.
#include "tests/nccl/nccl_ranks.h"

namespace tersor::test {

std::vector<Fabric> fabrics() {
  const auto run = [](int ranks, const Body& body) {
    for_each_order(2, [&] {  //
      on_nccl(ranks, [&](NcclRank& rank) { body(rank.transport); });
    });
  };
  const Fabric nccl{.name = "Nccl", .run = run, .most_ranks = 8, .memory = Memory::kDevice};
  Fabric in_order = nccl;
  in_order.name = "NcclInOrder";
  in_order.in_order = true;
  return {nccl, in_order};
}

}  // namespace tersor::test
