// `tersor-bench allreduce --transport nccl`: allreduce of device memory with the columns of
// nccl-tests, next to NCCL's own sums of f32 and bf16.
#pragma once

#include <string_view>

#include "bench/allreduce_options.h"

namespace tersor::bench {

inline constexpr std::string_view kNcclTransport = "nccl";

/// Measures if the environment contains this process's rank (bench/processes/rank_identity.h).
/// Otherwise starts a process per rank. Throws InvalidArgumentError for options of other
/// transports, and CudaError without a device.
void run_nccl_allreduce(const AllreduceOptions& options);

}  // namespace tersor::bench
