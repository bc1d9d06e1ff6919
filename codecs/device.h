// What codecs need to hand a call to the kernels of a device. Whether there are any is known when
// this is compiled; whether there is a device, when a call is checked.
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

/// Where a call's memory lies, as its first span or its execution says.
inline Memory memory_of(const EncodeCall& call) {
  return call.gradients.empty() ? call.execution.memory : call.gradients.front().memory();
}
inline Memory memory_of(const DecodeCall& call) {
  return call.outputs.empty() ? call.execution.memory : call.outputs.front().memory();
}
inline Memory memory_of(const ReduceCall& call) {
  return call.states.empty() ? call.execution.memory : call.states.front().residual_in.memory();
}

/// Throws WireError where a frame is too short for the payload: on a device nobody else looks.
void check_frame_bytes(const FrameHeader& expected, std::span<const ConstByteSpan> frames);

}  // namespace tersor::encoding
