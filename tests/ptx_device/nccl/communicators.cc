// NCCL functions for creating, splitting, destroying and querying communicators.
#include "tests/ptx_device/nccl/communicator.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

/// The arguments of a rank for a split.
struct Choice {
  int color, key, rank;
};

/// The choices with `color`, ordered by key.
std::vector<Choice> own_part(std::vector<Choice> all, int color) {
  std::erase_if(all, [color](const Choice& choice) { return choice.color != color; });
  std::stable_sort(all.begin(), all.end(),
                   [](const Choice& a, const Choice& b) { return a.key < b.key; });
  return all;
}

bool split(ncclComm& parent, ncclComm& child, const Choice& own, std::uint64_t number) {
  std::vector<Choice> all(static_cast<std::size_t>(parent.ranks));
  if (!parent.tell(&own, sizeof own, all.data())) return false;
  if (own.color == NCCL_SPLIT_NOCOLOR) return true;
  const std::vector<Choice> part = own_part(std::move(all), own.color);
  const auto place = std::find_if(part.begin(), part.end(),
                                  [&](const Choice& choice) { return choice.rank == own.rank; });
  child.ranks = static_cast<int>(part.size());
  child.rank = static_cast<int>(place - part.begin());
  child.name = parent.name + "-" + std::to_string(number) + "." + std::to_string(own.color);
  return child.enter();
}

bool blocks(const ncclConfig_t* config, bool otherwise) {
  const bool says = config != nullptr && config->blocking != NCCL_CONFIG_UNDEF_INT;
  return says ? config->blocking != 0 : otherwise;
}

ncclResult_t make(ncclComm_t* made, int ranks, const ncclUniqueId& id, int rank, bool blocking) {
  if (ranks < 1 || ranks > ptx::nccl::kMostRanks || rank < 0 || rank >= ranks)
    return ncclInvalidArgument;
  auto* comm = new ncclComm;
  comm->rank = rank;
  comm->ranks = ranks;
  comm->name = std::string(id.internal, strnlen(id.internal, sizeof id.internal));
  comm->blocking = blocking;
  cudaGetDevice(&comm->device);
  *made = comm;
  return comm->start([comm] { return comm->enter(); });
}

}  // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof *id);
  unsigned long long words[2] = {};
  const int file = open("/dev/urandom", O_RDONLY);
  const bool fine = file >= 0 && read(file, words, sizeof words) == sizeof words;
  if (file >= 0) close(file);
  std::snprintf(id->internal, sizeof id->internal, "%016llx%016llx", words[0], words[1]);
  return fine ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return make(made, ranks, id, rank, blocks(config, true));
}

ncclResult_t ncclCommInitRank(ncclComm_t* made, int ranks, ncclUniqueId id, int rank) {
  return make(made, ranks, id, rank, true);
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config) {
  if (parent->is_over()) return ncclInvalidUsage;
  const bool takes_part = color != NCCL_SPLIT_NOCOLOR;
  auto* comm = new ncclComm;
  // A rank without a communicator cannot query the result, and the call blocks.
  comm->blocking = !takes_part || blocks(config, parent->blocking);
  comm->device = parent->device;
  *made = takes_part ? comm : nullptr;
  const Choice own{color, key, parent->rank};
  const std::uint64_t number = ++parent->splits;
  const ncclResult_t result = comm->start([=] { return split(*parent, *comm, own, number); });
  if (takes_part) return result;
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm != nullptr) comm->leave();
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  comm->stopped = true;
  comm->leave();
  return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  comm->revoked = true;
  comm->wait_for_device();
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->state;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->ranks;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t, void*, std::size_t, void** handle) {
  *handle = handle;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

}  // extern "C"
