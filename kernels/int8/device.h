// int8 on a device: the same bytes as on the CPU. Queued on the call's stream; the call was
// checked.
#pragma once

#include "kernels/device/device_frame.h"

#include <tersor/codec.h>

namespace tersor::kernels {

void int8_device_encode(const EncodeCall& call, Rounding rounding, const DeviceFrame& frame);

/// Frames whose header is not `expected` make the outputs NaN.
void int8_device_decode(const DecodeCall& call, const FrameHeader& expected);

/// Frames whose header is not `expected` poison all blocks of the one that is written.
void int8_device_reduce(const ReduceCall& call, Rounding rounding, const DeviceFrame& frame,
                        const FrameHeader& expected);

}  // namespace tersor::kernels
