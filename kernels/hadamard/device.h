// hadamard on a device: the same bytes as on the CPU. Queued on the call's stream; the call was
// checked. Headers carry no step yet: kernels write the words' into those of new frames, and take
// the frames' own where they read some.
#pragma once

#include "kernels/device/device_frame.h"

#include <tersor/codec.h>

namespace tersor::kernels {

void hadamard_device_encode(const EncodeCall& call, unsigned bits, const DeviceFrame& frame);

/// Frames whose header is not `expected`, or of several steps, make the outputs NaN.
void hadamard_device_decode(const DecodeCall& call, unsigned bits, const FrameHeader& expected);

/// Frames whose header is not that of `frame`, or of several steps, poison all blocks of the one
/// that is written.
void hadamard_device_reduce(const ReduceCall& call, unsigned bits, const DeviceFrame& frame);

}  // namespace tersor::kernels
