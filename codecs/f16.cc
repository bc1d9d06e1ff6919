// f16: joins its layout, its kernels and its name.

#include "codecs/cast_codec.h"
#include "codecs/registry.h"
#include "kernels/f16/cpu.h"
#include "kernels/f16/device.h"

#include <tersor/codecs/f16.h>

namespace tersor::encoding {
namespace {

struct F16Kernels {
  static constexpr std::uint16_t kId = kF16CodecId;
  static constexpr bool kLossless = false;
  static constexpr Dtype wire_dtype(Dtype) { return Dtype::kF16; }
  static std::size_t encode(const kernels::CastEncode& arguments) {
    return kernels::f16_encode(arguments);
  }
  static void decode(const kernels::CastDecode& arguments) { kernels::f16_decode(arguments); }
  static std::size_t reduce(const kernels::CastReduce& arguments, Dtype) {
    return kernels::f16_reduce(arguments);
  }

  static void device_encode(const EncodeCall& call, const kernels::DeviceFrame& frame) {
    kernels::f16_device_encode(call, frame);
  }
  static void device_encode_native(const EncodeCall& call, float factor, ValueSpan values) {
    kernels::f16_device_encode_native(call, factor, values);
  }
  static void device_decode(const DecodeCall& call, const FrameHeader& expected) {
    kernels::f16_device_decode(call, expected);
  }
  static void device_decode_native(const DecodeCall& call, ConstValueSpan values) {
    kernels::f16_device_decode_native(call, values);
  }
  static void device_reduce(const ReduceCall& call, const kernels::DeviceFrame& frame,
                            const FrameHeader& expected) {
    kernels::f16_device_reduce(call, frame, expected);
  }
};

}  // namespace

CodecEntry f16_entry() {
  return {{.name = "f16",
           .id = kF16CodecId,
           .summary = "IEEE binary16, two bytes a value; overflows are counted",
           .keys = {}},
          make_cast_codec<F16Kernels>};
}

}  // namespace tersor::encoding
