// Bytes on a device as tests of transports need them: written and read by what is queued on a
// stream, so that whoever does not wait for the stream sees something else.
#pragma once

#include <tersor/buffer.h>
#include <tersor/stream.h>

#include <algorithm>
#include <cstddef>

#include "kernels/device/device_memory.h"

namespace tersor::test {

/// Device memory that a stream fills when it comes to it.
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

/// What device memory holds when a stream comes to this.
class LateCopy {
 public:
  LateCopy(ConstByteSpan bytes, const Stream& stream) : pinned_(bytes.size()) {
    kernels::copy_bytes(pinned_.pointer(), bytes.data(), bytes.size(), stream.view());
  }

  /// Once the stream was synchronised.
  ConstByteSpan span() const { return pinned_.span(); }

 private:
  kernels::PinnedBuffer pinned_;
};

}  // namespace tersor::test
