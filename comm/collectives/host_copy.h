// Copies values between device and host, for checkpoints and statistics. May block.
#pragma once

#include <tersor/buffer.h>
#include <tersor/span.h>
#include <tersor/stream.h>

#include "kernels/device/device_memory.h"

#include <cstddef>
#include <span>
#include <vector>

namespace tersor {

/// Host values unchanged, or a host copy of device values. A copy waits for the work queued on
/// `stream`.
class HostCopy {
 public:
  HostCopy(ConstValueSpan values, StreamView stream);
  ConstValueSpan values() const { return values_; }

 private:
  kernels::PinnedBuffer memory_;
  ConstValueSpan values_;
};

/// A buffer of zeros. Device memory is written in the order of `stream`.
Buffer zeroed_buffer(std::size_t bytes, Memory memory, StreamView stream);

/// to_floats converts f32, bf16 or f16 values of either memory to floats. from_floats converts
/// floats times `factor` to values. Device memory is accessed in the order of `stream`, and both
/// functions wait.
std::vector<float> to_floats(ConstValueSpan values, StreamView stream);
void from_floats(std::span<const float> floats, float factor, ValueSpan values, StreamView stream);

}  // namespace tersor
