// What an allreduce on devices must yield: the bits of the same collective on the CPU, or, where
// the library below added, the sum to within its roundings.
#pragma once

#include <tersor/buffer.h>
#include <tersor/span.h>

#include <cstddef>

#include "bench/allreduce_case.h"
#include "bench/ranks.h"

namespace tersor::bench {

/// What all ranks end with when `wanted` is done by threads of this process. `gradients` holds
/// those of all ranks.
Buffer reduced_on_host(const RankGradients& gradients, const AllreduceCase& wanted);

/// How many values differ in a bit.
std::size_t count_different(ConstValueSpan expected, ConstValueSpan actual);

/// How many values are further from the sum than rounding each addend and each partial sum to
/// `rounded_to`, in whatever order, could bring them. NaN counts.
std::size_t count_outside(const RankGradients& gradients, Dtype rounded_to, ConstValueSpan actual);

}  // namespace tersor::bench
