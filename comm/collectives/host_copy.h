// Values of a device on the host and back: for checkpoints and statistics, which may wait.
#pragma once

#include <tersor/span.h>
#include <tersor/stream.h>

#include "kernels/device/device_memory.h"

#include <span>
#include <vector>

namespace tersor {

/// Host values as they are, or a copy of a device's as they stand once all that is queued on
/// `stream` is done: waits for that.
class HostCopy {
 public:
  HostCopy(ConstValueSpan values, StreamView stream);
  ConstValueSpan values() const { return values_; }

 private:
  kernels::PinnedBuffer memory_;
  ConstValueSpan values_;
};

/// f32, bf16 or f16 values of either memory as floats; and floats times `factor` as values. What
/// lies on a device is read and written in the order of `stream`, and waited for.
std::vector<float> to_floats(ConstValueSpan values, StreamView stream);
void from_floats(std::span<const float> floats, float factor, ValueSpan values, StreamView stream);

}  // namespace tersor
