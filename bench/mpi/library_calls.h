// MPI's own collectives from and to rank 0, by the algorithms that it chooses itself.
#pragma once

#include <tersor/span.h>

#include <string_view>

namespace tersor::bench {

/// One of MPI_Bcast (in place, in the output), MPI_Reduce, MPI_Gather and MPI_Scatter, on
/// MPI_COMM_WORLD, of f32. Throws InvalidArgument for another name, or too many values for MPI.
void call_library(std::string_view name, ConstValueSpan input, ValueSpan output);

}  // namespace tersor::bench
