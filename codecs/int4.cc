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

  static constexpr auto device_encode = [](auto&&... arguments) {
    kernels::int4_device_encode(arguments...);
  };
  static constexpr auto device_decode = [](auto&&... arguments) {
    kernels::int4_device_decode(arguments...);
  };
  static constexpr auto device_reduce = [](auto&&... arguments) {
    kernels::int4_device_reduce(arguments...);
  };
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
