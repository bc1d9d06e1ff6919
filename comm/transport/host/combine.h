// The arithmetic of native sums and maxima on hosts.
#pragma once

#include <tersor/span.h>

namespace tersor::host {

/// Combines values of one dtype and count: `into` becomes the result.
using Combine = void (*)(ValueSpan into, ConstValueSpan from);

/// into + from. bf16 and f16 add in f32 and round to nearest even; integers wrap around.
void add_values(ValueSpan into, ConstValueSpan from);

/// The larger of each pair; NaN where one is NaN, +0 of two zeros, so that order does not matter.
void maximum_values(ValueSpan into, ConstValueSpan from);

}  // namespace tersor::host
