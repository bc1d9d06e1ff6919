// bf16: the upper half of an f32, rounded to nearest even. What the arguments
// mean stands in kernels/cast/arguments.h, the rounding in kernels/scalar/convert.h.
#pragma once

#include "kernels/cast/arguments.h"

namespace tersor::kernels {

/// Rounds a range, with or without error feedback.
void bf16_encode(const CastEncode& arguments);

/// Decodes the sum of one or more payloads.
void bf16_decode(const CastDecode& arguments);

/// Adds payloads and rounds their sum.
void bf16_reduce(const CastReduce& arguments);

}  // namespace tersor::kernels
