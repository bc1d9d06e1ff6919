// int8: eight-bit codes in [-127, 127], a scale for every 256 values.
#pragma once

#include "kernels/quantize/formulas.h"

#include <tersor/codecs/int8.h>

#include <cstddef>

namespace tersor::kernels {

struct Int8Format {
  using Layout = Int8Layout;
  static constexpr float kLevels = 127;
  static constexpr std::size_t kBlock = 256;  // values that share a scale
  static constexpr unsigned kBits = 8;        // of a code
};

}  // namespace tersor::kernels
