// int4: joins its layout, its kernels and its name.

#include "codecs/quantize_codec.h"
#include "codecs/registry.h"
#include "kernels/int4/cpu.h"
#include "kernels/int4/device.h"

#include <tersor/codecs/int4.h>

namespace tersor::encoding {
namespace {

struct Int4Kernels {
  using Layout = Int4Layout;
  static constexpr std::uint16_t kId = kInt4CodecId;
  static void encode(const kernels::QuantizeEncode& arguments) { kernels::int4_encode(arguments); }
  static void decode(const kernels::QuantizeDecode& arguments) { kernels::int4_decode(arguments); }
  static void reduce(const kernels::QuantizeReduce& arguments) { kernels::int4_reduce(arguments); }

  static void device_encode(const EncodeCall& call, Rounding rounding,
                            const kernels::DeviceFrame& frame) {
    kernels::int4_device_encode(call, rounding, frame);
  }
  static void device_decode(const DecodeCall& call, const FrameHeader& expected) {
    kernels::int4_device_decode(call, expected);
  }
  static void device_reduce(const ReduceCall& call, Rounding rounding,
                            const kernels::DeviceFrame& frame, const FrameHeader& expected) {
    kernels::int4_device_reduce(call, rounding, frame, expected);
  }
};

}  // namespace

CodecEntry int4_entry() {
  return {{.name = "int4",
           .id = kInt4CodecId,
           .summary = "four bits a value, a scale for 128 values (QSGD with absmax scaling)",
           .keys = {kRoundingChoice.help()}},
          make_quantize_codec<Int4Kernels>};
}

}  // namespace tersor::encoding
