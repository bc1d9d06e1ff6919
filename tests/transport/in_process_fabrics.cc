// Fabrics of ranks on threads.
#include "tests/transport/ranks.h"

namespace tersor::test {

std::vector<Fabric> fabrics() {
  return {in_process_fabric("InProcess", "none"),
          in_process_fabric("EmulatedLink", "10Gbit,20us,overhead=1.046"),
          in_process_fabric("SharedHosts", "10Gbit,20us,per_host=3")};
}

}  // namespace tersor::test
