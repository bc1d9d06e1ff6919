// f16 on a device: the kernels of kernels/cast/body.cuh.

#include "kernels/cast/device.cuh"
#include "kernels/f16/device.h"

namespace tersor::kernels {
namespace {

struct F16Cast {
  template <typename>
  using Wire = F16;
  static constexpr bool kCopies = false;
};

}  // namespace

void f16_device_encode(const EncodeCall& call, const DeviceFrame& frame) {
  cast_device_encode_frame<F16Cast>(call, frame);
}

void f16_device_encode_native(const EncodeCall& call, float factor, ValueSpan values) {
  cast_device_encode<F16Cast>(call, bare(values, factor));
}

void f16_device_decode(const DecodeCall& call, const FrameHeader& expected) {
  cast_device_decode<F16Cast>(call, expected);
}

void f16_device_decode_native(const DecodeCall& call, ConstValueSpan values) {
  cast_device_decode_native<F16Cast>(call, values);
}

void f16_device_reduce(const ReduceCall& call, const DeviceFrame& frame,
                       const FrameHeader& expected) {
  cast_device_reduce<F16Cast>(call, frame, expected);
}

}  // namespace tersor::kernels
