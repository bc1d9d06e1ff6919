// `tersor-bench allreduce --transport nccl`: device memory, with the columns of nccl-tests, beside
// NCCL's own sum of f32 and of bf16.
#pragma once

#include <string_view>

#include "bench/allreduce_options.h"

namespace tersor::bench {

inline constexpr std::string_view kNcclTransport = "nccl";

/// Measures, where the environment says which rank this process is (bench/processes/rank_place.h);
/// else starts a process for each rank. Throws InvalidArgument for what only other transports do,
/// CudaError where there is no device.
void run_nccl_allreduce(const AllreduceOptions& options);

}  // namespace tersor::bench
