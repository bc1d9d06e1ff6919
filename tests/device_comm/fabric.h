// Transports with support for device memory, for the suites of this folder. Each test program
// defines its transports and device.
#pragma once

#include <gtest/gtest.h>
#include <tersor/stream.h>
#include <tersor/transport.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace tersor::test {

using DeviceBody = std::function<void(Transport& transport, StreamView stream)>;

struct DeviceFabric {
  std::string name;
  /// Runs a body on each of `ranks` ranks, each with a separate stream.
  std::function<void(int ranks, const DeviceBody& body)> run;
  /// True if native sums are Tersor's, with the same bits as on the host.
  bool own_sums = true;

  friend std::ostream& operator<<(std::ostream& out, const DeviceFabric& fabric) {
    return out << fabric.name;
  }
};

/// Defined once for each test program.
std::vector<DeviceFabric> device_fabrics();

inline std::string device_fabric_name(const ::testing::TestParamInfo<DeviceFabric>& info) {
  return info.param.name;
}

class OnDeviceFabric : public ::testing::TestWithParam<DeviceFabric> {};

}  // namespace tersor::test
