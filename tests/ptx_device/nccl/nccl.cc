// A replacement of NCCL for ranks on interpreted devices of one machine, as processes or threads.
// Messages use shared memory, in the order of their streams. Mismatched calls end both ranks at
// once and print both calls. This file contains the version, the errors, and the functions for
// moving values.
#include "tests/ptx_device/nccl/calls.h"
#include "tests/ptx_device/nccl/sums.h"

#include <nccl.h>

using namespace ptx::nccl;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = 22809;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "internal error";
  }
}

const char* ncclGetLastError(ncclComm_t) { return last_error_text(); }

ncclResult_t ncclGroupStart() {
  begin_group();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() { return end_group(); }

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return enqueue({.what = What::kSend,
                  .comm = comm,
                  .stream = stream,
                  .from = from,
                  .bytes = count * bytes_of(type),
                  .peer = peer});
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return enqueue({.what = What::kReceive,
                  .comm = comm,
                  .stream = stream,
                  .to = to,
                  .bytes = count * bytes_of(type),
                  .peer = peer});
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return enqueue({.what = What::kAllGather,
                  .comm = comm,
                  .stream = stream,
                  .from = from,
                  .to = to,
                  .bytes = count * bytes_of(type)});
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return enqueue({.what = What::kAllReduce,
                  .comm = comm,
                  .stream = stream,
                  .from = from,
                  .to = to,
                  .bytes = count * bytes_of(type),
                  .count = count,
                  .type = type,
                  .op = op});
}

}  // extern "C"
