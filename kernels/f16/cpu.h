// f16: IEEE binary16, rounded to nearest even; what is too large becomes infinite and is counted.
// What the arguments mean stands in kernels/cast/arguments.h, the rounding in
// kernels/scalar/convert.h.
#pragma once

#include "kernels/cast/arguments.h"

namespace tersor::kernels {

/// Rounds a range, with or without error feedback. Returns how many finite
/// values became infinite.
std::size_t f16_encode(const CastEncode& arguments);

/// Decodes the sum of one or more payloads.
void f16_decode(const CastDecode& arguments);

/// Adds payloads and rounds their sum. Returns how many finite
/// values became infinite.
std::size_t f16_reduce(const CastReduce& arguments);

}  // namespace tersor::kernels
