// Data-moving calls. Calls are collected until the group ends, then queued on the streams.
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
/// A call outside of a group forms a separate group.
ncclResult_t enqueue(const Call& call);

/// The last error of this thread.
const char* last_error_text();

}  // namespace ptx::nccl
