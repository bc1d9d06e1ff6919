// Ranks as threads of this process. Messages are staged in pinned memory.
#pragma once

#include "tests/device_comm/fabric.h"

#include <tersor/inprocess.h>

namespace tersor::test {

inline DeviceFabric staged_fabric() {
  const auto run = [](int ranks, const DeviceBody& body) {
    run_ranks(ranks, {}, [&](Transport& transport) {
      const Stream stream;
      body(transport, stream.view());
      stream.synchronize();
    });
  };
  return {.name = "staged", .run = run};
}

}  // namespace tersor::test
