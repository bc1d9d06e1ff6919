// int4: four-bit codes in [-7, 7], two to a byte, a scale for every 128 values.
#pragma once

#include "kernels/quantize/formulas.h"

#include <tersor/codecs/int4.h>

#include <cstddef>

namespace tersor::kernels {

struct Int4Format {
  using Layout = Int4Layout;
  static constexpr float kLevels = 7;
  static constexpr std::size_t kBlock = 128;  // values that share a scale
  static constexpr unsigned kBits = 4;        // of a code
};

/// Two codes as one byte, the even index in the low nibble.
TERSOR_BODY std::uint8_t pack_nibbles(std::int32_t even, std::int32_t odd) {
  return static_cast<std::uint8_t>((even & 0xf) | (odd & 0xf) << 4);
}

/// The code in the low nibble of `byte`; for the other one pass byte >> 4.
TERSOR_BODY std::int32_t unpack_nibble(std::uint32_t byte) {
  return static_cast<std::int32_t>((byte & 0xf) ^ 8) - 8;
}

}  // namespace tersor::kernels
