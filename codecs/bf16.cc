// bf16: joins its layout, its kernels and its name.

#include "codecs/cast_codec.h"
#include "codecs/registry.h"
#include "kernels/bf16/cpu.h"
#include "kernels/bf16/device.h"

#include <tersor/codecs/bf16.h>

namespace tersor::encoding {
namespace {

struct Bf16Kernels {
  static constexpr std::uint16_t kId = kBf16CodecId;
  static constexpr bool kLossless = false;
  static constexpr Dtype wire_dtype(Dtype) { return Dtype::kBf16; }
  static std::size_t encode(const kernels::CastEncode& arguments) {
    kernels::bf16_encode(arguments);
    return 0;
  }
  static void decode(const kernels::CastDecode& arguments) { kernels::bf16_decode(arguments); }
  static std::size_t reduce(const kernels::CastReduce& arguments, Dtype) {
    kernels::bf16_reduce(arguments);
    return 0;
  }

  static void device_encode(const EncodeCall& call, const kernels::DeviceFrame& frame) {
    kernels::bf16_device_encode(call, frame);
  }
  static void device_encode_native(const EncodeCall& call, float factor, ValueSpan values) {
    kernels::bf16_device_encode_native(call, factor, values);
  }
  static void device_decode(const DecodeCall& call, const FrameHeader& expected) {
    kernels::bf16_device_decode(call, expected);
  }
  static void device_decode_native(const DecodeCall& call, ConstValueSpan values) {
    kernels::bf16_device_decode_native(call, values);
  }
  static void device_reduce(const ReduceCall& call, const kernels::DeviceFrame& frame,
                            const FrameHeader& expected) {
    kernels::bf16_device_reduce(call, frame, expected);
  }
};

}  // namespace

CodecEntry bf16_entry() {
  return {{.name = "bf16",
           .id = kBf16CodecId,
           .summary = "bfloat16, two bytes a value; the honest baseline",
           .keys = {}},
          make_cast_codec<Bf16Kernels>};
}

}  // namespace tersor::encoding
