// int8: joins its layout, its kernels and its name.

#include "codecs/quantize_codec.h"
#include "codecs/registry.h"
#include "kernels/int8/cpu.h"
#include "kernels/int8/device.h"

#include <tersor/codecs/int8.h>

namespace tersor::encoding {
namespace {

struct Int8Kernels {
  using Layout = Int8Layout;
  static constexpr std::uint16_t kId = kInt8CodecId;
  static void encode(const kernels::QuantizeEncode& arguments) { kernels::int8_encode(arguments); }
  static void decode(const kernels::QuantizeDecode& arguments) { kernels::int8_decode(arguments); }
  static void reduce(const kernels::QuantizeReduce& arguments) { kernels::int8_reduce(arguments); }

  static void device_encode(const EncodeCall& call, Rounding rounding,
                            const kernels::DeviceFrame& frame) {
    kernels::int8_device_encode(call, rounding, frame);
  }
  static void device_decode(const DecodeCall& call, const FrameHeader& expected) {
    kernels::int8_device_decode(call, expected);
  }
  static void device_reduce(const ReduceCall& call, Rounding rounding,
                            const kernels::DeviceFrame& frame, const FrameHeader& expected) {
    kernels::int8_device_reduce(call, rounding, frame, expected);
  }
};

}  // namespace

CodecEntry int8_entry() {
  return {{.name = "int8",
           .id = kInt8CodecId,
           .summary = "eight bits a value, a scale for 256 values (QSGD with absmax scaling)",
           .keys = {kRoundingChoice.help()}},
          make_quantize_codec<Int8Kernels>};
}

}  // namespace tersor::encoding
