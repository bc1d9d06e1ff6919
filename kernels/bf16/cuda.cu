// bf16 on a device: the kernels of kernels/cast/body.cuh.

#include "kernels/bf16/device.h"
#include "kernels/cast/device.cuh"

namespace tersor::kernels {
namespace {

struct Bf16Cast {
  template <typename>
  using Wire = Bf16;
  static constexpr bool kCopies = false;
};

}  // namespace

void bf16_device_encode(const EncodeCall& call, const DeviceFrame& frame) {
  cast_device_encode_frame<Bf16Cast>(call, frame);
}

void bf16_device_encode_native(const EncodeCall& call, float factor, ValueSpan values) {
  cast_device_encode<Bf16Cast>(call, bare(values, factor));
}

void bf16_device_decode(const DecodeCall& call, const FrameHeader& expected) {
  cast_device_decode<Bf16Cast>(call, expected);
}

void bf16_device_decode_native(const DecodeCall& call, ConstValueSpan values) {
  cast_device_decode_native<Bf16Cast>(call, values);
}

void bf16_device_reduce(const ReduceCall& call, const DeviceFrame& frame,
                        const FrameHeader& expected) {
  cast_device_reduce<Bf16Cast>(call, frame, expected);
}

}  // namespace tersor::kernels
