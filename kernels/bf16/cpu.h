// bf16: the upper half of an f32, rounded to nearest even. What the arguments
// mean stands in kernels/common/cast.h, the rounding in kernels/common/convert.h.
#pragma once

#include "kernels/common/cast.h"

namespace tersor::kernels {

/// Rounds a range, with or without error feedback.
void bf16_encode(const CastEncode& arguments);

/// Decodes the sum of one or more payloads.
void bf16_decode(const CastDecode& arguments);

/// Adds payloads and rounds their sum.
void bf16_reduce(const CastReduce& arguments);

}  // namespace tersor::kernels
