// Device memory for tests of transports. All reads and writes are queued on a stream, so code
// without a wait for the stream sees other bytes.
#pragma once

#include <tersor/buffer.h>
#include <tersor/stream.h>

#include <algorithm>
#include <cstddef>

#include "kernels/device/device_memory.h"

namespace tersor::test {

/// Device memory filled in stream order.
class LateBytes {
 public:
  LateBytes(ConstByteSpan bytes, const Stream& stream)
      : pinned_(bytes.size()), memory_(bytes.size(), Memory::kDevice) {
    std::copy(bytes.begin(), bytes.end(), pinned_.pointer());
    kernels::copy_bytes(memory_.pointer(), pinned_.pointer(), bytes.size(), stream.view());
  }

  ConstByteSpan span() const { return memory_.span(); }
  ValueSpan values(std::size_t count, Dtype dtype) const { return memory_.values(count, dtype); }

 private:
  kernels::PinnedBuffer pinned_;
  Buffer memory_;
};

/// A copy of device memory made in stream order.
class LateCopy {
 public:
  LateCopy(ConstByteSpan bytes, const Stream& stream) : pinned_(bytes.size()) {
    kernels::copy_bytes(pinned_.pointer(), bytes.data(), bytes.size(), stream.view());
  }

  /// Valid after synchronizing the stream.
  ConstByteSpan span() const { return pinned_.span(); }

 private:
  kernels::PinnedBuffer pinned_;
};

}  // namespace tersor::test
