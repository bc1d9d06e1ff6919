// NCCL's data types and reductions.
#pragma once

#include <nccl.h>

#include <cstddef>

namespace ptx::nccl {

std::size_t bytes_of(ncclDataType_t type);

/// to[i] = to[i] + from[i], or the larger or smaller value.
void combine(char* to, const char* from, std::size_t count, ncclDataType_t type, ncclRedOp_t op);

}  // namespace ptx::nccl
