// The fabrics of ranks on threads that stage device memory through the host.
#include "tests/transport/ranks.h"

namespace tersor::test {

std::vector<Fabric> fabrics() {
  Fabric staged = in_process_fabric("Staged", "none");
  staged.most_ranks = 4;
  staged.memory = Memory::kDevice;
  Fabric in_order = staged;
  in_order.name = "StagedInOrder";
  in_order.in_order = true;
  return {staged, in_order};
}

}  // namespace tersor::test
