// Implements watched_nccl.h.
#include "tests/nccl/watched_nccl.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "kernels/device/device.h"

namespace tersor::test {
namespace {

/// The state of a communicator.
struct Watched {
  int device = 0;
  bool revoked = false, aborted = false, destroyed = false;
  bool block_next = false, is_deaf = false;
  ncclResult_t error = ncclSuccess;
  std::set<const void*> registered;

  bool gone() const { return aborted || destroyed; }
};

struct Watch {
  nccl::Api real;  ///< the replacement's table
  std::mutex mutex;
  std::condition_variable stopped;
  std::map<ncclComm_t, Watched> communicators;
  std::map<std::string, int> calls;
  std::vector<std::string> misuses;
  bool refuses_registrations = false;
};

std::unique_ptr<Watch> watch;
thread_local int depth = 0;
thread_local std::set<std::pair<ncclComm_t, cudaStream_t>> group;  // its streams

using Lock = std::unique_lock<std::mutex>;

Lock lock_watch() { return Lock(watch->mutex); }

Lock note(const char* function) {
  Lock lock = lock_watch();
  ++watch->calls[function];
  return lock;
}

void misuse(const std::string& what) { watch->misuses.push_back(what); }

Watched& known(ncclComm_t handle) { return watch->communicators[handle]; }

/// True if a communicator may be used in a call.
bool usable(ncclComm_t handle, const char* function) {
  if (handle != nullptr && !known(handle).gone()) return true;
  misuse(std::string(function) + " of a communicator that is gone");
  return false;
}

ncclResult_t add(ncclComm_t* made, ncclResult_t result) {
  const Lock lock = lock_watch();
  if (*made != nullptr) watch->real.comm_device(*made, &known(*made).device);
  return result;
}

ncclResult_t get_unique_id(ncclUniqueId* id) {
  note("ncclGetUniqueId");
  return watch->real.get_unique_id(id);
}

ncclResult_t comm_init(ncclComm_t* made, int ranks, ncclUniqueId id, int rank,
                       ncclConfig_t* config) {
  note("ncclCommInitRankConfig");
  return add(made, watch->real.comm_init(made, ranks, id, rank, config));
}

ncclResult_t comm_split(ncclComm_t handle, int color, int key, ncclComm_t* made,
                        ncclConfig_t* config) {
  {
    const Lock lock = note("ncclCommSplit");
    if (!usable(handle, "ncclCommSplit")) return ncclInvalidArgument;
  }
  return add(made, watch->real.comm_split(handle, color, key, made, config));
}

ncclResult_t comm_async_error(ncclComm_t handle, ncclResult_t* error) {
  const Lock lock = note("ncclCommGetAsyncError");
  if (!usable(handle, "ncclCommGetAsyncError")) return ncclInvalidArgument;
  *error = known(handle).error;
  return *error != ncclSuccess ? ncclSuccess : watch->real.comm_async_error(handle, error);
}

ncclResult_t comm_finalize(ncclComm_t handle) {
  const Lock lock = note("ncclCommFinalize");
  usable(handle, "ncclCommFinalize");
  if (known(handle).revoked) misuse("ncclCommFinalize after ncclCommRevoke");
  return watch->real.comm_finalize(handle);
}

/// Returns false if the communicator was already gone.
bool mark(ncclComm_t handle, const char* function, bool Watched::*how) {
  const Lock lock = note(function);
  if (!usable(handle, function)) return false;
  known(handle).*how = true;
  watch->stopped.notify_all();
  return true;
}

ncclResult_t comm_destroy(ncclComm_t handle) {
  if (!mark(handle, "ncclCommDestroy", &Watched::destroyed)) return ncclInvalidArgument;
  return watch->real.comm_destroy(handle);
}
ncclResult_t comm_abort(ncclComm_t handle) {
  if (!mark(handle, "ncclCommAbort", &Watched::aborted)) return ncclInvalidArgument;
  return watch->real.comm_abort(handle);
}
ncclResult_t comm_revoke(ncclComm_t handle, int flags) {
  if (!mark(handle, "ncclCommRevoke", &Watched::revoked)) return ncclInvalidArgument;
  return watch->real.comm_revoke(handle, flags);
}

ncclResult_t comm_register(ncclComm_t handle, void* memory, std::size_t bytes,
                           void** registration) {
  const Lock lock = note("ncclCommRegister");
  if (watch->refuses_registrations) return ncclInvalidUsage;
  if (!known(handle).registered.insert(memory).second) misuse("memory registered twice");
  const ncclResult_t result = watch->real.comm_register(handle, memory, bytes, registration);
  *registration = memory;
  return result;
}
ncclResult_t comm_deregister(ncclComm_t handle, void* registration) {
  const Lock lock = note("ncclCommDeregister");
  if (!usable(handle, "ncclCommDeregister") || known(handle).registered.erase(registration) == 0)
    misuse("memory deregistered that was not registered");
  return watch->real.comm_deregister(handle, registration);
}

const char* last_error(ncclComm_t handle) {
  const Lock lock = lock_watch();
  const bool broken = handle != nullptr && known(handle).error != ncclSuccess;
  return broken ? "socket closed" : watch->real.last_error(handle);
}

/// Blocks the host on request, like lazy connections to a missing rank.
bool was_blocked(ncclComm_t handle) {
  Lock lock = lock_watch();
  Watched& own = known(handle);
  if (!std::exchange(own.block_next, false)) return false;
  watch->stopped.wait(lock, [&own] { return own.gone() || (own.revoked && !own.is_deaf); });
  return true;
}

ncclResult_t group_start() {
  note("ncclGroupStart");
  ++depth;
  return watch->real.group_start();
}

// A group of the transport must use a single communicator and a single stream.
ncclResult_t group_end() {
  {
    const Lock lock = note("ncclGroupEnd");
    if (group.size() > 1) misuse("a group of several communicators or streams");
  }
  --depth;
  const auto named = depth == 0 ? std::exchange(group, {}) : decltype(group){};
  const bool blocked = !named.empty() && was_blocked(named.begin()->first);
  const ncclResult_t result = watch->real.group_end();
  return blocked ? ncclInternalError : result;
}

/// A data-moving call.
template <typename Real>
ncclResult_t operate(const char* function, ncclComm_t handle, cudaStream_t stream,
                     const Real& real) {
  {
    const Lock lock = note(function);
    if (!usable(handle, function)) return ncclInvalidArgument;
    if (known(handle).device != kernels::current_device())
      misuse(std::string(function) + " on another device");
  }
  if (depth > 0) group.insert({handle, stream});
  if (depth == 0 && was_blocked(handle)) return ncclInternalError;
  return real();
}

ncclResult_t all_reduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t reduction, ncclComm_t handle, cudaStream_t stream) {
  return operate("ncclAllReduce", handle, stream, [&] {
    return watch->real.all_reduce(from, to, count, type, reduction, handle, stream);
  });
}
ncclResult_t all_gather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                        ncclComm_t handle, cudaStream_t stream) {
  return operate("ncclAllGather", handle, stream,
                 [&] { return watch->real.all_gather(from, to, count, type, handle, stream); });
}
ncclResult_t send(const void* from, std::size_t count, ncclDataType_t type, int peer,
                  ncclComm_t handle, cudaStream_t stream) {
  return operate("ncclSend", handle, stream,
                 [&] { return watch->real.send(from, count, type, peer, handle, stream); });
}
ncclResult_t receive(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
                     cudaStream_t stream) {
  return operate("ncclRecv", handle, stream,
                 [&] { return watch->real.receive(to, count, type, peer, handle, stream); });
}

}  // namespace

WatchedNccl::WatchedNccl(int version) {
  watch = std::make_unique<Watch>();
  watch->real = nccl::api();
  table_ = watch->real;
  table_.version = version;
  table_.get_unique_id = get_unique_id;
  table_.comm_init = comm_init;
  table_.comm_split = comm_split;
  table_.comm_finalize = comm_finalize;
  table_.comm_destroy = comm_destroy;
  table_.comm_abort = comm_abort;
  table_.comm_revoke = version >= 22'809 ? comm_revoke : nullptr;
  table_.comm_async_error = comm_async_error;
  table_.comm_register = comm_register;
  table_.comm_deregister = comm_deregister;
  table_.last_error = last_error;
  table_.all_reduce = all_reduce;
  table_.all_gather = all_gather;
  table_.send = send;
  table_.receive = receive;
  table_.group_start = group_start;
  table_.group_end = group_end;
  nccl::use_api(&table_);
}

// Aborts concurrently, because work of one communicator may wait for another.
WatchedNccl::~WatchedNccl() {
  nccl::use_api(nullptr);
  std::vector<std::thread> threads;
  for (const auto& [handle, own] : watch->communicators)
    if (!own.gone()) threads.emplace_back(watch->real.comm_abort, handle);
  for (std::thread& thread : threads) thread.join();
}

std::vector<ncclComm_t> WatchedNccl::make_clique(int ranks) {
  ncclUniqueId id{};
  table_.get_unique_id(&id);
  std::vector<ncclComm_t> handles(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      kernels::use_device(rank);
      table_.comm_init(&handles[static_cast<std::size_t>(rank)], ranks, id, rank, &config);
    });
  for (std::thread& thread : threads) thread.join();
  return handles;
}

void WatchedNccl::break_down(ncclComm_t communicator, ncclResult_t error) {
  const Lock lock = lock_watch();
  known(communicator).error = error;
}

void WatchedNccl::block_next_group(ncclComm_t communicator) {
  const Lock lock = lock_watch();
  known(communicator).block_next = true;
}

void WatchedNccl::block_next_group_deaf(ncclComm_t communicator) {
  const Lock lock = lock_watch();
  known(communicator).block_next = known(communicator).is_deaf = true;
}

void WatchedNccl::refuse_registrations() { watch->refuses_registrations = true; }

bool WatchedNccl::is_revoked(ncclComm_t communicator) const {
  const Lock lock = lock_watch();
  return known(communicator).revoked;
}

int WatchedNccl::calls(const std::string& function) const {
  const Lock lock = lock_watch();
  return watch->calls[function];
}

int WatchedNccl::open_communicators() const {
  const Lock lock = lock_watch();
  return static_cast<int>(std::ranges::count_if(
      watch->communicators, [](const auto& one) { return !one.second.gone(); }));
}

int WatchedNccl::open_registrations() const {
  const Lock lock = lock_watch();
  int open = 0;
  for (const auto& [handle, own] : watch->communicators)
    if (!own.aborted) open += static_cast<int>(own.registered.size());
  return open;
}

std::vector<std::string> WatchedNccl::misuses() const {
  const Lock lock = lock_watch();
  return watch->misuses;
}

}  // namespace tersor::test
