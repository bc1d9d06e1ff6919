// none on a device: the kernels of kernels/cast/body.cuh.

#include "kernels/cast/device.cuh"
#include "kernels/none/device.h"

namespace tersor::kernels {
namespace {

struct NoneCast {
  template <typename G>
  using Wire = G;
  static constexpr bool kCopies = true;
};

}  // namespace

void none_device_encode(const EncodeCall& call, const DeviceFrame& frame) {
  cast_device_encode_frame<NoneCast>(call, frame);
}

void none_device_encode_native(const EncodeCall& call, float factor, ValueSpan values) {
  cast_device_encode<NoneCast>(call, bare(values, factor));
}

void none_device_decode(const DecodeCall& call, const FrameHeader& expected) {
  cast_device_decode<NoneCast>(call, expected);
}

void none_device_decode_native(const DecodeCall& call, ConstValueSpan values) {
  cast_device_decode_native<NoneCast>(call, values);
}

void none_device_reduce(const ReduceCall& call, const DeviceFrame& frame,
                        const FrameHeader& expected) {
  cast_device_reduce<NoneCast>(call, frame, expected);
}

}  // namespace tersor::kernels
