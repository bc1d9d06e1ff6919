// Calls that move values: they are collected until their group ends, then queued on their streams.
#pragma once

#include "tests/ptx_device/nccl/communicator.h"

#include <cstddef>

namespace ptx::nccl {

enum class What { kSend, kReceive, kAllGather, kAllReduce };

struct Call {
  What what;
  ncclComm* comm;
  cudaStream_t stream;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0, count = 0;  // of one rank
  int peer = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
};

void begin_group();
ncclResult_t end_group();
/// A call outside of a group is a group by itself.
ncclResult_t enqueue(const Call& call);

/// Of this thread.
const char* last_error_text();

}  // namespace ptx::nccl
