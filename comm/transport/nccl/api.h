// The functions of NCCL that are used, found while the program runs: so that one process never
// holds two NCCLs, and one build works with many versions.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace tersor::nccl {

/// Pointers to NCCL's functions, under their own names. Where a comment names a version, older
/// libraries lack the function and the pointer is null; its type is written out, since the header
/// of such a library does not declare the function either.
struct Api {
  int version = 0;   ///< as ncclGetVersion gives it: 22809 for 2.28.9
  std::string path;  ///< of the file that it came from

  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init = nullptr;
  /// Null before 2.18.
  ncclResult_t (*comm_split)(ncclComm_t parent, int color, int key, ncclComm_t* made,
                             ncclConfig_t* config) = nullptr;
  decltype(&::ncclCommFinalize) comm_finalize = nullptr;
  decltype(&::ncclCommDestroy) comm_destroy = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  /// Null in older ones; 2.28.9 has it. Flags: 0.
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

/// The NCCL of this process, looked for at the first call. Throws TransportError where there is
/// none, or one that is too old; the next call then looks again.
const Api& api();

/// Puts another table in its place, which outlives all that uses it; null: back. For tests.
void use_api(const Api* table);

/// "2.28.9" of 22809.
std::string version_name(int version);

/// Throws TransportError with NCCL's own words where `result` is an error of `call`.
/// `communicator` may be null; it is not touched unless `result` is an error.
void check(ncclResult_t result, std::string_view call, ncclComm_t communicator);

/// What NCCL says of an error, in a sentence without an end.
std::string describe(ncclResult_t result, ncclComm_t communicator);

}  // namespace tersor::nccl
