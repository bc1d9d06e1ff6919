// Implements fake_nccl.h: NCCL's functions.
#include "tests/nccl/fake_nccl.h"

#include "tests/nccl/fake_state.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "kernels/device/device.h"

namespace tersor::test {
namespace fake {
namespace {

constexpr std::chrono::seconds kPatience{30};

std::shared_ptr<State> current;  // what is still queued keeps its own
thread_local std::vector<Call> group;
thread_local int depth = 0;

Communicator* of(ncclComm_t handle) { return reinterpret_cast<Communicator*>(handle); }
ncclComm_t handle_of(Communicator* communicator) {
  return reinterpret_cast<ncclComm_t>(communicator);
}

Lock lock_state() { return Lock(current->mutex); }

Lock note(const char* function) {
  Lock lock = lock_state();
  ++current->calls[function];
  return lock;
}

/// Whether a communicator may be named in a call.
bool usable(ncclComm_t handle, const char* function) {
  const Communicator* own = of(handle);
  if (own != nullptr && !own->aborted && !own->destroyed) return true;
  current->misuse(std::string(function) + " of a communicator that is gone");
  return false;
}

ncclResult_t get_unique_id(ncclUniqueId* id) {
  const Lock lock = note("ncclGetUniqueId");
  std::memset(id, 0, sizeof *id);
  const std::string text = "identifier " + std::to_string(++current->identifiers);
  text.copy(id->internal, sizeof id->internal - 1);
  return ncclSuccess;
}

/// A new member of the clique of this identifier.
ncclComm_t join(const std::string& identifier, int ranks, int rank, bool blocking) {
  auto& clique = current->cliques[identifier];
  if (clique == nullptr) clique = std::make_shared<Clique>();
  auto made = std::make_unique<Communicator>();
  if (clique->members.contains(rank)) current->misuse("two ranks of one number");
  clique->ranks = ranks;
  clique->identifier = identifier;
  clique->members[rank] = made.get();
  made->clique = clique;
  made->rank = rank;
  made->device = kernels::current_device();
  made->blocking = blocking;
  current->communicators.push_back(std::move(made));
  return handle_of(current->communicators.back().get());
}

ncclResult_t comm_init(ncclComm_t* handle, int ranks, ncclUniqueId id, int rank,
                       ncclConfig_t* config) {
  const Lock lock = note("ncclCommInitRankConfig");
  *handle = join(id.internal, ranks, rank, config->blocking != 0);
  return config->blocking == 0 ? ncclInProgress : ncclSuccess;
}

// All ranks of the transport's splits stay together.
ncclResult_t comm_split(ncclComm_t handle, int color, int key, ncclComm_t* made,
                        ncclConfig_t* config) {
  const Lock lock = note("ncclCommSplit");
  if (!usable(handle, "ncclCommSplit")) return ncclInvalidArgument;
  Communicator& own = *of(handle);
  if (color != 0 || key != own.rank) current->misuse("a split that the stand-in does not know");
  *made = join(own.clique->identifier + ", split " + std::to_string(own.splits++),
               own.clique->ranks, own.rank, config->blocking != 0);
  return own.blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t comm_async_error(ncclComm_t handle, ncclResult_t* error) {
  const Lock lock = note("ncclCommGetAsyncError");
  if (!usable(handle, "ncclCommGetAsyncError")) return ncclInvalidArgument;
  const Communicator& own = *of(handle);
  const bool complete = static_cast<int>(own.clique->members.size()) == own.clique->ranks;
  *error = own.error != ncclSuccess ? own.error : complete ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}

ncclResult_t comm_finalize(ncclComm_t handle) {
  const Lock lock = note("ncclCommFinalize");
  usable(handle, "ncclCommFinalize");
  if (of(handle)->revoked) current->misuse("ncclCommFinalize after ncclCommRevoke");
  return ncclSuccess;
}

ncclResult_t comm_destroy(ncclComm_t handle) {
  const Lock lock = note("ncclCommDestroy");
  if (usable(handle, "ncclCommDestroy")) of(handle)->destroyed = true;
  current->changed.notify_all();
  return ncclSuccess;
}

/// As NCCL waits for the stream that its kernels are on, once it has told them to end. What stands
/// before them must come to its end by others.
void wait_for_device(const Communicator& own) {
  Lock lock = lock_state();
  const auto has_ended = [&own] { return own.ended >= own.queued; };
  if (!current->changed.wait_for(lock, kPatience, has_ended))
    current->misuse("a stop that waits for ever");
}

ncclResult_t stop(ncclComm_t handle, const char* function, bool Communicator::*how) {
  {
    const Lock lock = note(function);
    if (!usable(handle, function)) return ncclInvalidArgument;
    of(handle)->*how = true;
    current->changed.notify_all();
  }
  wait_for_device(*of(handle));
  return ncclSuccess;
}

ncclResult_t comm_abort(ncclComm_t handle) {
  return stop(handle, "ncclCommAbort", &Communicator::aborted);
}
ncclResult_t comm_revoke(ncclComm_t handle, int) {
  return stop(handle, "ncclCommRevoke", &Communicator::revoked);
}

ncclResult_t comm_count(ncclComm_t handle, int* count) {
  *count = of(handle)->clique->ranks;
  return ncclSuccess;
}
ncclResult_t comm_device(ncclComm_t handle, int* device) {
  *device = of(handle)->device;
  return ncclSuccess;
}
ncclResult_t comm_rank(ncclComm_t handle, int* rank) {
  *rank = of(handle)->rank;
  return ncclSuccess;
}

ncclResult_t comm_register(ncclComm_t handle, void* memory, std::size_t, void** registration) {
  const Lock lock = note("ncclCommRegister");
  if (current->refuses_registrations) return ncclInvalidUsage;
  if (!of(handle)->registered.insert(memory).second) current->misuse("memory registered twice");
  *registration = memory;
  return ncclSuccess;
}
ncclResult_t comm_deregister(ncclComm_t handle, void* registration) {
  const Lock lock = note("ncclCommDeregister");
  if (!usable(handle, "ncclCommDeregister") || of(handle)->registered.erase(registration) == 0)
    current->misuse("memory deregistered that was not registered");
  return ncclSuccess;
}

const char* error_string(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "an error of NCCL";
}
const char* last_error(ncclComm_t) { return "socket closed"; }

ncclResult_t group_start() {
  const Lock lock = note("ncclGroupStart");
  ++depth;
  return ncclSuccess;
}

/// Blocks the host, as lazy connections do where a rank is gone.
void block(const Communicator& own, Lock& lock) {
  current->changed.wait(lock, [&own] { return own.is_deaf ? own.aborted : own.stopped(); });
}

ncclResult_t launch(std::vector<Call> calls) {
  Lock lock = lock_state();
  Communicator& own = *calls.front().communicator;
  if (own.stopped()) return ncclInvalidUsage;
  if (std::exchange(own.block_next, false)) {
    block(own, lock);
    return ncclInternalError;
  }
  queue_calls(current, std::move(calls));
  return own.blocking ? ncclSuccess : ncclInProgress;
}

// The transport's groups are of one communicator and one stream.
ncclResult_t group_end() {
  {
    const Lock lock = note("ncclGroupEnd");
    --depth;
    if (depth > 0 || group.empty()) return ncclSuccess;
    for (const Call& call : group)
      if (call.communicator != group.front().communicator || call.stream != group.front().stream)
        current->misuse("a group of several communicators or streams");
  }
  return launch(std::exchange(group, {}));
}

ncclResult_t add(const char* function, Call call) {
  {
    const Lock lock = note(function);
    if (!usable(reinterpret_cast<ncclComm_t>(call.communicator), function))
      return ncclInvalidArgument;
    if (call.communicator->device != kernels::current_device())
      current->misuse(std::string(function) + " on another device");
    if (depth > 0) {
      group.push_back(call);
      return ncclSuccess;
    }
  }
  return launch({call});
}

ncclResult_t all_reduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t reduction, ncclComm_t handle, cudaStream_t stream) {
  return add("ncclAllReduce",
             {Call::kAllReduce, of(handle), stream, from, to, count, type, reduction, 0});
}
ncclResult_t all_gather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                        ncclComm_t handle, cudaStream_t stream) {
  return add("ncclAllGather",
             {Call::kAllGather, of(handle), stream, from, to, count, type, ncclSum, 0});
}
ncclResult_t send(const void* from, std::size_t count, ncclDataType_t type, int peer,
                  ncclComm_t handle, cudaStream_t stream) {
  return add("ncclSend",
             {Call::kSend, of(handle), stream, from, nullptr, count, type, ncclSum, peer});
}
ncclResult_t receive(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
                     cudaStream_t stream) {
  return add("ncclRecv",
             {Call::kReceive, of(handle), stream, nullptr, to, count, type, ncclSum, peer});
}

}  // namespace

}  // namespace fake

FakeNccl::FakeNccl(int version) {
  fake::current = std::make_shared<fake::State>();
  table_.version = version;
  table_.path = "the stand-in of the tests";
  table_.get_unique_id = fake::get_unique_id;
  table_.comm_init = fake::comm_init;
  table_.comm_split = fake::comm_split;
  table_.comm_finalize = fake::comm_finalize;
  table_.comm_destroy = fake::comm_destroy;
  table_.comm_abort = fake::comm_abort;
  if (version >= 22'809) table_.comm_revoke = fake::comm_revoke;
  table_.comm_async_error = fake::comm_async_error;
  table_.comm_count = fake::comm_count;
  table_.comm_device = fake::comm_device;
  table_.comm_rank = fake::comm_rank;
  table_.comm_register = fake::comm_register;
  table_.comm_deregister = fake::comm_deregister;
  table_.error_string = fake::error_string;
  table_.last_error = fake::last_error;
  table_.all_reduce = fake::all_reduce;
  table_.all_gather = fake::all_gather;
  table_.send = fake::send;
  table_.receive = fake::receive;
  table_.group_start = fake::group_start;
  table_.group_end = fake::group_end;
  nccl::use_api(&table_);
}

FakeNccl::~FakeNccl() {
  nccl::use_api(nullptr);
  const fake::Lock lock = fake::lock_state();
  for (const auto& communicator : fake::current->communicators) communicator->destroyed = true;
  fake::current->changed.notify_all();
}

std::vector<ncclComm_t> FakeNccl::make_clique(int ranks) {
  ncclUniqueId id{};
  fake::get_unique_id(&id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  std::vector<ncclComm_t> handles(static_cast<std::size_t>(ranks));
  const int before = kernels::current_device();
  for (int rank = 0; rank < ranks; ++rank) {
    kernels::use_device(rank);
    fake::comm_init(&handles[static_cast<std::size_t>(rank)], ranks, id, rank, &config);
  }
  kernels::use_device(before);
  return handles;
}

void FakeNccl::break_down(ncclComm_t communicator, ncclResult_t error) {
  const fake::Lock lock = fake::lock_state();
  fake::of(communicator)->error = error;
}

void FakeNccl::block_next_group(ncclComm_t communicator) {
  const fake::Lock lock = fake::lock_state();
  fake::of(communicator)->block_next = true;
}

void FakeNccl::block_next_group_deaf(ncclComm_t communicator) {
  const fake::Lock lock = fake::lock_state();
  fake::of(communicator)->block_next = fake::of(communicator)->is_deaf = true;
}

void FakeNccl::refuse_registrations() { fake::current->refuses_registrations = true; }

bool FakeNccl::is_revoked(ncclComm_t communicator) const {
  const fake::Lock lock = fake::lock_state();
  return fake::of(communicator)->revoked;
}

int FakeNccl::calls(const std::string& function) const {
  const fake::Lock lock = fake::lock_state();
  return fake::current->calls[function];
}

int FakeNccl::open_communicators() const {
  const fake::Lock lock = fake::lock_state();
  const auto& all = fake::current->communicators;
  return static_cast<int>(std::count_if(all.begin(), all.end(), [](const auto& communicator) {
    return !communicator->aborted && !communicator->destroyed;
  }));
}

int FakeNccl::open_registrations() const {
  const fake::Lock lock = fake::lock_state();
  int open = 0;
  for (const auto& communicator : fake::current->communicators)
    if (!communicator->aborted) open += static_cast<int>(communicator->registered.size());
  return open;
}

std::vector<std::string> FakeNccl::misuses() const {
  const fake::Lock lock = fake::lock_state();
  return fake::current->misuses;
}

}  // namespace tersor::test
