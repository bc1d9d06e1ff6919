// The used functions of NCCL, loaded at run time. A process therefore never holds two NCCL
// libraries, and a build works with many NCCL versions.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace tersor::nccl {

/// Pointers to NCCL's functions, named after the functions. Pointers with a version comment are
/// null in older libraries; their types are written out, because older headers do not declare the
/// functions.
struct Api {
  int version = 0;   ///< as returned by ncclGetVersion: 22809 for 2.28.9
  std::string path;  ///< of the library's file

  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init = nullptr;
  /// Null before 2.18.
  ncclResult_t (*comm_split)(ncclComm_t parent, int color, int key, ncclComm_t* made,
                             ncclConfig_t* config) = nullptr;
  decltype(&::ncclCommFinalize) comm_finalize = nullptr;
  decltype(&::ncclCommDestroy) comm_destroy = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  /// Null in older libraries; available in 2.28.9. `flags` must be 0.
  ncclResult_t (*comm_revoke)(ncclComm_t communicator, int flags) = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_async_error = nullptr;
  decltype(&::ncclCommCount) comm_count = nullptr;
  decltype(&::ncclCommCuDevice) comm_device = nullptr;
  decltype(&::ncclCommUserRank) comm_rank = nullptr;
  /// Null before 2.19.
  ncclResult_t (*comm_register)(const ncclComm_t communicator, void* memory, std::size_t bytes,
                                void** registration) = nullptr;
  ncclResult_t (*comm_deregister)(const ncclComm_t communicator, void* registration) = nullptr;
  decltype(&::ncclGetErrorString) error_string = nullptr;
  decltype(&::ncclGetLastError) last_error = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) receive = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
};

/// The NCCL library of this process, loaded by the first call. Throws TransportError if no library
/// is found or the library is too old; the next call then tries again.
const Api& api();

/// Replaces the table for tests; null restores the library. `table` must outlive all uses.
void use_api(const Api* table);

/// Formats a version: 22809 becomes "2.28.9".
std::string version_name(int version);

/// Throws TransportError with NCCL's text if `result` is an error of `call`. `communicator` may be
/// null and is accessed only if `result` is an error.
void check(ncclResult_t result, std::string_view call, ncclComm_t communicator);

/// NCCL's description of an error, without a final period.
std::string describe(ncclResult_t result, ncclComm_t communicator);

}  // namespace tersor::nccl
