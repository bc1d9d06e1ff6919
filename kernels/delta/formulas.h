// The formulas and field widths of weight deltas, for g++ and for nvcc.
#pragma once

#include "kernels/scalar/bits.h"

#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

constexpr unsigned kDeltaCountBits = 15;  // of a number of values in a block's head
constexpr unsigned kDeltaWidthBits = 4;   // of the width of low parts
constexpr unsigned kDeltaMaxWidth = 13;
constexpr unsigned kDeltaStepBits = 6;  // of the width of big steps
constexpr unsigned kDeltaGamma = 63;    // the width that means Elias gamma codes

/// Calls visit(the unsigned type of this width). The width is in bytes.
template <typename Visitor>
void visit_delta_width(unsigned width, const Visitor& visit) {
  switch (width) {
    case 1:
      return visit(std::uint8_t());
    case 2:
      return visit(std::uint16_t());
    case 4:
      return visit(std::uint32_t());
    default:
      return visit(std::uint64_t());
  }
}

/// Converts a float's bits to a position in the order of the numbers, and back: if the sign bit is
/// 1, the other bits are inverted.
template <typename Bits>
TERSOR_BODY constexpr Bits delta_flip(Bits bits) {
  constexpr unsigned kSign = 8 * sizeof(Bits) - 1;
  const auto all = static_cast<Bits>(static_cast<std::make_signed_t<Bits>>(bits) >> kSign);
  return static_cast<Bits>(bits ^ (all & static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1)));
}

}  // namespace tersor::kernels
