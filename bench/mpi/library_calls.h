// MPI's own collectives, with rank 0 for a root, by the algorithms that it chooses itself.
#pragma once

#include <tersor/span.h>

#include <string_view>

namespace tersor::bench {

/// One of MPI_Bcast (in place, in the output), MPI_Reduce, MPI_Gather, MPI_Scatter, MPI_Alltoall
/// and MPI_Sendrecv (to the next rank, from the one before), on MPI_COMM_WORLD, of f32. Throws
/// InvalidArgument for another name, or too many values for MPI.
void call_library(std::string_view name, ConstValueSpan input, ValueSpan output);

}  // namespace tersor::bench
