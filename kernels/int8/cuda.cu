// int8 on a device: the kernels of kernels/quantize/body.cuh.

#include "kernels/int8/device.h"
#include "kernels/quantize/device.cuh"
#include "kernels/quantize/int8.h"

namespace tersor::kernels {

void int8_device_encode(const EncodeCall& call, Rounding rounding, const DeviceFrame& frame) {
  quantize_device_encode<Int8Format>(call, rounding, frame);
}

void int8_device_decode(const DecodeCall& call, const FrameHeader& expected) {
  quantize_device_decode<Int8Format>(call, expected);
}

void int8_device_reduce(const ReduceCall& call, Rounding rounding, const DeviceFrame& frame,
                        const FrameHeader& expected) {
  quantize_device_reduce<Int8Format>(call, rounding, frame, expected);
}

}  // namespace tersor::kernels
