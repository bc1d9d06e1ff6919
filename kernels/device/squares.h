// Sums of squares of values that lie on a device.
#pragma once

#include <tersor/span.h>
#include <tersor/stream.h>

namespace tersor::kernels {

/// Queues *sum += the squares of f32 or bf16 values, in f64; `sum` lies on the device.
void add_squares(ConstValueSpan values, double* sum, StreamView stream);

}  // namespace tersor::kernels
