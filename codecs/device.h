// Hands codec calls to device kernels. The build decides whether kernels exist; the check of a call
// decides whether there is a device.
#pragma once

#include "codecs/frame.h"
#include "kernels/device/device_frame.h"

#include <tersor/codec.h>

namespace tersor::encoding {

#if TERSOR_HAS_CUDA
inline constexpr bool kHasDeviceKernels = true;
#else
inline constexpr bool kHasDeviceKernels = false;
#endif

/// Returns the memory of a call: the memory of its first span, or of its execution.
inline Memory memory_of(const EncodeCall& call) {
  return call.gradients.empty() ? call.execution.memory : call.gradients.front().memory();
}
inline Memory memory_of(const DecodeCall& call) {
  return call.outputs.empty() ? call.execution.memory : call.outputs.front().memory();
}
inline Memory memory_of(const ReduceCall& call) {
  return call.states.empty() ? call.execution.memory : call.states.front().residual_in.memory();
}

/// Throws WireError if a frame is shorter than the payload. On a device, no other code checks this.
void check_frame_bytes(const FrameHeader& expected, std::span<const ConstByteSpan> frames);

}  // namespace tersor::encoding
