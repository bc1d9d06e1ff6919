// hadamard on a device, with the same bytes as on the CPU. Kernels are queued on the call's stream.
// The caller has validated the call. The headers passed in contain no step. Kernels write the state
// words' step into new frames, or the step of the input frames if the kernel reads frames.
#pragma once

#include "kernels/device/device_frame.h"

#include <tersor/codec.h>

namespace tersor::kernels {

void hadamard_device_encode(const EncodeCall& call, unsigned bits, const DeviceFrame& frame);

/// If a frame's header differs from `expected`, or if the frames' steps differ, the outputs become
/// NaN.
void hadamard_device_decode(const DecodeCall& call, unsigned bits, const FrameHeader& expected);

/// If an input frame's header differs from the header of `frame`, all blocks of the written frame
/// are poisoned. All blocks are also poisoned if the input frames' steps differ.
void hadamard_device_reduce(const ReduceCall& call, unsigned bits, const DeviceFrame& frame);

}  // namespace tersor::kernels
