// Transports that take device memory, for the suites of this folder: each test program says which
// it has, and on which device.
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
  /// Runs a body on each of so many ranks, each with a stream of its own.
  std::function<void(int ranks, const DeviceBody& body)> run;
  /// Whether native sums are ours, with the bits of ranks on hosts.
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
