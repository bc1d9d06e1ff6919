// Small in-place loops over values, for sums on hosts and for means. The functions run on one
// thread. Pointers need only the alignment of their element type. Spans must be identical or
// disjoint.
#pragma once

#include <tersor/dtype.h>

#include <cstddef>

namespace tersor::kernels {

/// values = values · factor, rounded once. Supports f32, bf16 and f16. Throws InvalidArgumentError
/// for another dtype.
void scale_values(void* values, Dtype dtype, std::size_t count, float factor);

/// sums = sums + values. bf16 and f16 are added in f32 and rounded once. i8, i32 and u32 wrap
/// around.
void add_values(void* sums, const void* values, Dtype dtype, std::size_t count);

/// maxima = the larger of maxima and values, independent of operand order. If either is NaN, the
/// result is NaN. The larger of two zeros is +0 unless both are -0.
void maximum_values(void* maxima, const void* values, Dtype dtype, std::size_t count);

/// Returns the sum of squares of the values, in f64. Only `count` determines the order of
/// summation. Supports f32, bf16 and f16. Throws InvalidArgumentError for another dtype.
double sum_of_squares(const void* values, Dtype dtype, std::size_t count);

}  // namespace tersor::kernels
