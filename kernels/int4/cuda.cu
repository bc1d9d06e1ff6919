// int4 on a device: the kernels of kernels/quantize/body.cuh.

#include "kernels/int4/device.h"
#include "kernels/quantize/device.cuh"
#include "kernels/quantize/int4.h"

namespace tersor::kernels {

void int4_device_encode(const EncodeCall& call, Rounding rounding, const DeviceFrame& frame) {
  quantize_device_encode<Int4Format>(call, rounding, frame);
}

void int4_device_decode(const DecodeCall& call, const FrameHeader& expected) {
  quantize_device_decode<Int4Format>(call, expected);
}

void int4_device_reduce(const ReduceCall& call, Rounding rounding, const DeviceFrame& frame,
                        const FrameHeader& expected) {
  quantize_device_reduce<Int4Format>(call, rounding, frame, expected);
}

}  // namespace tersor::kernels
