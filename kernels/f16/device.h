// f16 on a device: the same bytes as on the CPU. Queued on the call's stream; the call was checked.
#pragma once

#include "kernels/device/device_frame.h"

#include <tersor/codec.h>

namespace tersor::kernels {

void f16_device_encode(const EncodeCall& call, const DeviceFrame& frame);

/// Bare values, times `factor`; in the gradient's own memory if need be.
void f16_device_encode_native(const EncodeCall& call, float factor, ValueSpan values);

/// Frames whose header is not `expected` make the outputs NaN.
void f16_device_decode(const DecodeCall& call, const FrameHeader& expected);

/// Bare values that came back.
void f16_device_decode_native(const DecodeCall& call, ConstValueSpan values);

/// Frames whose header is not `expected` make all values of the one that is written NaN.
void f16_device_reduce(const ReduceCall& call, const DeviceFrame& frame,
                       const FrameHeader& expected);

}  // namespace tersor::kernels
