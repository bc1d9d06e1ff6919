// See idle_nccl.h.
#include "tests/overhead/idle_nccl.h"

#include "tests/overhead/idle_counts.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tersor::idle {
namespace {

// A communicator handle encodes only the number of ranks.
int ranks_of(ncclComm_t communicator) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(communicator));
}

ncclResult_t called() {
  ++counts.nccl_calls;
  return ncclSuccess;
}

// Maximum bytes of a message for agreement; gathered gradients are longer.
constexpr std::size_t kLongestWord = 512;

ncclResult_t all_gather(const void* from, void* to, std::size_t bytes, ncclDataType_t,
                        ncclComm_t communicator, cudaStream_t) {
  if (bytes > kLongestWord) return called();
  for (int rank = 0; rank < ranks_of(communicator); ++rank)
    std::memmove(static_cast<std::byte*>(to) + static_cast<std::size_t>(rank) * bytes, from, bytes);
  return called();
}

ncclResult_t make(ncclComm_t* communicator, int ranks, ncclUniqueId, int, ncclConfig_t*) {
  *communicator = communicator_of(ranks);
  return ncclSuccess;
}
ncclResult_t split(ncclComm_t whole, int, int, ncclComm_t* part, ncclConfig_t*) {
  *part = whole;
  return ncclSuccess;
}
ncclResult_t give_zero(ncclComm_t, int* number) {
  *number = 0;
  return ncclSuccess;
}
ncclResult_t leave(ncclComm_t) { return ncclSuccess; }

void make_communicators(nccl::Api& table) {
  table.get_unique_id = [](ncclUniqueId*) { return ncclSuccess; };
  table.comm_init = make;
  table.comm_split = split;
  table.comm_finalize = leave;
  table.comm_destroy = leave;
  table.comm_abort = leave;
}

void answer(nccl::Api& table) {
  table.comm_async_error = [](ncclComm_t, ncclResult_t* state) { return *state = ncclSuccess; };
  table.comm_count = [](ncclComm_t communicator, int* ranks) {
    *ranks = ranks_of(communicator);
    return ncclSuccess;
  };
  table.comm_device = give_zero;
  table.comm_rank = give_zero;
  table.error_string = [](ncclResult_t) { return "no error"; };
  table.last_error = [](ncclComm_t) { return "no error"; };
}

void move_bytes(nccl::Api& table) {
  table.all_gather = all_gather;
  table.all_reduce = [](const void*, void*, std::size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                        cudaStream_t) { return called(); };
  table.send = [](const void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
    return called();
  };
  table.receive = [](void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
    return called();
  };
  table.group_start = called;
  table.group_end = called;
}

}  // namespace

Nccl::Nccl() {
  table_.version = NCCL_VERSION_CODE;
  table_.path = "the idle one of the tests";
  make_communicators(table_);
  answer(table_);
  move_bytes(table_);
  nccl::use_api(&table_);
}

Nccl::~Nccl() { nccl::use_api(nullptr); }

ncclComm_t communicator_of(int ranks) {
  return reinterpret_cast<ncclComm_t>(static_cast<std::intptr_t>(ranks));
}

}  // namespace tersor::idle
