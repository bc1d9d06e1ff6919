// none: joins the gradient's own values, their kernels and the name.

#include "codecs/cast_codec.h"
#include "codecs/registry.h"
#include "kernels/none/cpu.h"
#include "kernels/none/device.h"

namespace tersor::encoding {
namespace {

struct NoneKernels {
  static constexpr std::uint16_t kId = kNoneCodecId;
  static constexpr bool kLossless = true;
  static constexpr Dtype wire_dtype(Dtype gradient) { return gradient; }
  static std::size_t encode(const kernels::CastEncode& arguments) {
    return kernels::none_encode(arguments);
  }
  static void decode(const kernels::CastDecode& arguments) { kernels::none_decode(arguments); }
  static std::size_t reduce(const kernels::CastReduce& arguments, Dtype wire) {
    return kernels::none_reduce(arguments, wire);
  }

  static void device_encode(const EncodeCall& call, const kernels::DeviceFrame& frame) {
    kernels::none_device_encode(call, frame);
  }
  static void device_encode_native(const EncodeCall& call, float factor, ValueSpan values) {
    kernels::none_device_encode_native(call, factor, values);
  }
  static void device_decode(const DecodeCall& call, const FrameHeader& expected) {
    kernels::none_device_decode(call, expected);
  }
  static void device_decode_native(const DecodeCall& call, ConstValueSpan values) {
    kernels::none_device_decode_native(call, values);
  }
  static void device_reduce(const ReduceCall& call, const kernels::DeviceFrame& frame,
                            const FrameHeader& expected) {
    kernels::none_device_reduce(call, frame, expected);
  }
};

}  // namespace

CodecEntry none_entry() {
  return {{.name = "none",
           .id = kNoneCodecId,
           .summary = "the gradient's values as they are; the baseline",
           .keys = {}},
          make_cast_codec<NoneKernels>};
}

}  // namespace tersor::encoding
