// The expected result of an allreduce on devices. A sum of the library below must agree within
// rounding errors. Any other result must equal the CPU's bits.
#pragma once

#include <tersor/buffer.h>
#include <tersor/span.h>

#include <cstddef>

#include "bench/allreduce/allreduce.h"

namespace tersor::bench {

/// Returns the result of `wanted` on threads of this process. `gradients` holds the gradients of
/// all ranks.
Buffer reduced_on_host(const RankGradients& gradients, const CollectiveCase& wanted);

/// Returns the number of values that differ in at least one bit.
std::size_t count_different(ConstValueSpan expected, ConstValueSpan actual);

/// Returns the number of values outside the rounding error. The bound assumes rounding of each
/// addend and each partial sum to `rounded_to`, in any order. NaN counts.
std::size_t count_outside(const RankGradients& gradients, Dtype rounded_to, ConstValueSpan actual);

}  // namespace tersor::bench
