// Small loops over values in place: what the sum on hosts and a mean need beside a codec. One
// thread; pointers need only their element's alignment; spans do not overlap unless they are the
// same.
#pragma once

#include <tersor/dtype.h>

#include <cstddef>

namespace tersor::kernels {

/// values = values · factor, rounded once. f32, bf16, f16; InvalidArgument for any other dtype.
void scale_values(void* values, Dtype dtype, std::size_t count, float factor);

/// sums = sums + values. f32; bf16 and f16 in f32, rounded once; i8, i32 and u32 wrap around.
void add_values(void* sums, const void* values, Dtype dtype, std::size_t count);

/// maxima = the larger of maxima and values; of a NaN and anything NaN, of two zeros +0 unless both
/// are -0, so that the order of the operands never matters.
void maximum_values(void* maxima, const void* values, Dtype dtype, std::size_t count);

/// The sum of the values' squares, added up in f64 in an order that only `count` decides. f32,
/// bf16, f16; InvalidArgument for any other dtype.
double sum_of_squares(const void* values, Dtype dtype, std::size_t count);

}  // namespace tersor::kernels
