// Suites for transports with support for device memory. Each test program defines its fabrics.
#pragma once

#include "tests/transport/rank.h"

namespace tersor::test {

/// A suite for the first fabric.
class OnDeviceFabric : public OnMemory {
 protected:
  using DeviceBody = std::function<void(Transport& transport, StreamView stream)>;

  /// Runs a body on each of `ranks` ranks, each with a separate stream.
  void run(int ranks, const DeviceBody& body) const {
    OnMemory::run(ranks, [&](const Rank& rank) { body(rank.transport, rank.stream().view()); });
  }
};

}  // namespace tersor::test
