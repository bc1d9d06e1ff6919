#include "comm/transport/nccl/communicator.h"

#include <tersor/error.h>

#include <memory>

#include "kernels/device/device.h"

namespace tersor::nccl {
namespace {

using namespace std::chrono_literals;

constexpr auto kFinalizeTimeout = 10s;  // for queued work when a communicator is destroyed
constexpr auto kShortCall = 100ms;      // maximum duration of a nonblocking call
// During a nonblocking call, because resting is a system call.
constexpr int kPollsBeforeRest = 100;
constexpr auto kRevokeTimeout = 1s;  // time for a revoke to end a blocking call

/// The state of a communicator: ncclInProgress or the final result.
ncclResult_t state_of(ncclComm_t handle) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t queried = api().comm_async_error(handle, &state);
  return queried == ncclSuccess ? state : queried;
}

void check_usable(ncclComm_t handle) {
  if (handle == nullptr)
    throw InvalidArgumentError(
        "the communicator is null: pass a communicator made by ncclCommInitRank");
  const ncclResult_t state = state_of(handle);
  if (state != ncclSuccess && state != ncclInProgress)
    throw InvalidArgumentError("the communicator was aborted or has failed: " +
                               describe(state, handle) + "; abort it and make a new one");
}

void check_on_current_device(ncclComm_t handle) {
  int device = 0;
  const int current = kernels::current_device();
  check(api().comm_device(handle, &device), "ncclCommCuDevice", handle);
  if (device != current)
    throw InvalidArgumentError("the communicator is for device " + std::to_string(device) +
                               ", but the current device is " + std::to_string(current) +
                               ": call cudaSetDevice first");
}

/// Waits until the communicator is not busy. Returns the final state, or ncclInProgress at `until`.
ncclResult_t wait_until_idle(ncclComm_t handle, Clock::time_point until) {
  ncclResult_t state = state_of(handle);
  while (state == ncclInProgress && Clock::now() < until) {
    kernels::sleep_between_polls();
    state = state_of(handle);
  }
  return state;
}

}  // namespace

Communicator::Communicator(ncclComm_t handle, Owner owner, const Fault& fault)
    : fault_(fault), handle_(handle), owner_(owner) {
  check_usable(handle);
  check_on_current_device(handle);
  check(api().comm_rank(handle, &rank_), "ncclCommUserRank", handle);
  check(api().comm_count(handle, &ranks_), "ncclCommCount", handle);
}

Communicator::~Communicator() {
  if (!stopped_) deregister_buffers();
  if (owner_ == Owner::kCaller || aborted_) return;
  if (stopped_)
    api().comm_abort(handle_);
  else
    destroy(handle_);
}

void Communicator::check_state(const Operation& operation) const {
  fault_.check(operation.name);
  if (stopped_)
    throw TransportError(std::string(operation.name) + ": the communicator was stopped");
}

Communicator::TimedCall::TimedCall(Communicator& communicator, const Operation& operation)
    : communicator_(communicator) {
  const std::lock_guard guard(communicator_.call_mutex_);
  communicator_.call_until_ = Clock::now() + operation.timeout;
  communicator_.call_name_ = operation.name;
}

Communicator::TimedCall::~TimedCall() {
  const std::lock_guard guard(communicator_.call_mutex_);
  communicator_.call_until_.reset();
}

// A stopped communicator is never accessed, because the communicator may be gone.
void Communicator::finish_call(ncclResult_t result, const Operation& operation, Lock& lock) {
  for (int polls = 0; result == ncclInProgress && !stopped_; ++polls) {
    lock.unlock();
    if (polls >= kPollsBeforeRest) kernels::sleep_between_polls();
    lock.lock();
    if (!stopped_) result = state_of(handle_);
  }
  check_state(operation);
  if (result == ncclInvalidUsage)
    throw TransportError("NCCL's call failed: " + describe(result, handle_) +
                         "; NCCL refuses revoked communicators with this error");
  check(result, "NCCL's call", handle_);
}

void Communicator::register_buffer(ByteSpan memory) {
  const Lock lock(mutex_);
  if (stopped_ || api().comm_register == nullptr || api().comm_deregister == nullptr) return;
  const auto [entry, is_new] = registrations_.try_emplace(memory.data(), nullptr);
  if (!is_new) return;
  void* registration = nullptr;
  if (api().comm_register(handle_, memory.data(), memory.size(), &registration) == ncclSuccess)
    entry->second = registration;
}

void Communicator::deregister_buffers() {
  for (const auto& [memory, registration] : registrations_)
    if (registration != nullptr) api().comm_deregister(handle_, registration);
}

std::optional<std::string> Communicator::async_error() {
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || stopped_) return std::nullopt;
  const ncclResult_t state = state_of(handle_);
  if (state == ncclSuccess || state == ncclInProgress) return std::nullopt;
  return describe(state, handle_);
}

std::optional<std::string> Communicator::late_call(Clock::time_point now) const {
  const std::lock_guard guard(call_mutex_);
  if (!call_until_.has_value() || now < *call_until_) return std::nullopt;
  return call_name_;
}

// A blocking call holds the lock while waiting for other ranks. NCCL is then called concurrently,
// as NCCL permits for revoke and abort.
void Communicator::stop() {
  Lock lock(mutex_, kShortCall);
  if (stopped_.exchange(true)) return;
  if (owner_ == Owner::kCaller) return revoke();
  if (!lock.owns_lock()) revoke_and_wait(lock);
  aborted_ = true;
  api().comm_abort(handle_);
}

// Concurrently with a call, a revoke is safer than an abort: an abort frees memory in use by the
// call. However, NCCL may undo a revoke before the call has seen the revoke. Then the caller has to
// abort.
void Communicator::revoke_and_wait(Lock& lock) {
  revoke();
  if (api().comm_revoke != nullptr) static_cast<void>(lock.try_lock_for(kRevokeTimeout));
}

void Communicator::revoke() {
  if (api().comm_revoke != nullptr) api().comm_revoke(handle_, 0);
}

void destroy(ncclComm_t handle) noexcept {
  try {
    const auto until = Clock::now() + kFinalizeTimeout;
    api().comm_finalize(handle);
    if (wait_until_idle(handle, until) == ncclSuccess)
      api().comm_destroy(handle);
    else
      api().comm_abort(handle);
  } catch (const std::exception&) {
    // without NCCL, no communicator exists
  }
}

namespace {

// Only nonblocking communicators can be created with a deadline, but NCCL starts a thread for each
// group of calls on a nonblocking communicator. Therefore, the ranks split off a blocking
// communicator once all ranks are connected. Without ncclCommRevoke, the communicator stays
// nonblocking, because aborting during a blocking call frees memory in use by the call.
ncclComm_t make_blocking(ncclComm_t first, Clock::time_point until) {
  if (api().comm_split == nullptr || api().comm_revoke == nullptr) return first;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  auto second = std::make_unique<ncclComm_t>(nullptr);
  int rank = 0;
  check(api().comm_rank(first, &rank), "ncclCommUserRank", first);
  const ncclResult_t started = api().comm_split(first, 0, rank, second.get(), &config);
  const bool accepted = started == ncclSuccess || started == ncclInProgress;
  if (accepted && wait_until_idle(first, until) == ncclSuccess && *second != nullptr &&
      wait_until_idle(*second, until) == ncclSuccess) {
    destroy(first);
    return *second;
  }
  const std::string reason = describe(state_of(first), first);
  const ncclComm_t* leaked = second.release();  // an NCCL thread may still write to this location
  if (*leaked != nullptr) api().comm_abort(*leaked);
  api().comm_abort(first);
  throw TransportError("making a communicator: its split failed: " + reason);
}

}  // namespace

ncclComm_t make_communicator(const ncclUniqueId& id, int rank, int ranks, Clock::time_point until) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t handle = nullptr;
  const ncclResult_t started = api().comm_init(&handle, ranks, id, rank, &config);
  if (handle == nullptr) check(started, "ncclCommInitRankConfig", nullptr);
  const ncclResult_t state = wait_until_idle(handle, until);
  if (state == ncclSuccess) return make_blocking(handle, until);
  const std::string rank_name = "rank " + std::to_string(rank) + " of " + std::to_string(ranks);
  const std::string reason =
      state == ncclInProgress ? "not all ranks joined in time" : describe(state, handle);
  api().comm_abort(handle);
  throw TransportError("making a communicator on " + rank_name + ": " + reason);
}

}  // namespace tersor::nccl
