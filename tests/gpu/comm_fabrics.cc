// The fabrics for the suites of tests/device_comm.
#include "tests/device_comm/staged_fabric.h"

namespace tersor::test {

std::vector<DeviceFabric> device_fabrics() { return {staged_fabric()}; }

}  // namespace tersor::test
