// none: gradients as they are. The wire's type is the gradient's own. What the arguments mean
// stands in kernels/cast/arguments.h.
#pragma once

#include "kernels/cast/arguments.h"

namespace tersor::kernels {

/// Copies a range bit for bit, or multiplies it by a factor; with error feedback writes p, whose
/// residual is 0 for an f32. Returns how many finite p became infinite as f16.
std::size_t none_encode(const CastEncode& arguments);

/// Decodes the sum of one or more payloads of the output's type.
void none_decode(const CastDecode& arguments);

/// Adds payloads of type `dtype` and rounds their sum to it. Returns how many finite sums became
/// infinite as f16.
std::size_t none_reduce(const CastReduce& arguments, Dtype dtype);

}  // namespace tersor::kernels
