// An NCCL communicator: ownership, calls with a timeout, and stopping.
#pragma once

#include <tersor/transport.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "comm/transport/nccl/api.h"
#include "comm/transport/nccl/fault.h"

namespace tersor::nccl {

enum class Owner { kCaller, kTransport };

/// Used by a channel's thread and by the watcher thread, which calls `async_error` and `stop`.
class Communicator {
 public:
  /// Throws InvalidArgumentError if the handle is null, belongs to a device other than the current
  /// one, or was aborted or has failed according to NCCL.
  Communicator(ncclComm_t handle, Owner owner, const Fault& fault);
  /// Destroys an owned communicator, or aborts the communicator if stopped.
  ~Communicator();

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  Owner owner() const { return owner_; }

  /// Calls call(handle) and waits for completion if the communicator is nonblocking. The watcher
  /// enforces the operation's timeout meanwhile. Throws TransportError with NCCL's text or with the
  /// transport's fault.
  template <typename Call>
  void run(const Operation& operation, Call&& call) {
    const TimedCall timed(*this, operation);
    Lock lock(mutex_);
    check_state(operation);
    finish_call(call(handle_), operation, lock);
  }

  /// Registers a frequently used receive buffer with NCCL until the end of this object. Ignores a
  /// refusal by NCCL.
  void register_buffer(ByteSpan memory);

  /// The asynchronous error found by NCCL; nothing while NCCL is busy or without an error.
  std::optional<std::string> async_error();
  /// The name of the operation whose current call exceeded the timeout.
  std::optional<std::string> late_call(Clock::time_point now) const;
  /// Ends all waits for other ranks: revokes the communicator if NCCL supports revoking, and aborts
  /// an owned communicator. Waits until queued work has ended. Never throws.
  void stop();
  bool is_stopped() const { return stopped_; }

 private:
  using Lock = std::unique_lock<std::timed_mutex>;

  /// Lets the watcher enforce the timeout of a call while this object lives.
  class TimedCall {
   public:
    TimedCall(Communicator& communicator, const Operation& operation);
    ~TimedCall();
    TimedCall(const TimedCall&) = delete;
    TimedCall& operator=(const TimedCall&) = delete;

   private:
    Communicator& communicator_;
  };

  void finish_call(ncclResult_t result, const Operation& operation, Lock& lock);
  void check_state(const Operation& operation) const;
  void deregister_buffers();
  void revoke_and_wait(Lock& lock);
  void revoke();

  const Fault& fault_;
  ncclComm_t handle_;
  Owner owner_;
  int rank_ = 0;
  int ranks_ = 0;
  std::timed_mutex mutex_;  // held during calls to NCCL
  std::atomic<bool> stopped_{false};
  bool aborted_ = false;  // True if the handle is gone

  std::map<std::byte*, void*> registrations_;  // null if refused

  mutable std::mutex call_mutex_;  // protects the following members
  std::optional<Clock::time_point> call_until_;
  std::string call_name_;
};

/// Destroys a communicator, or aborts the communicator if finalizing takes more than some seconds.
void destroy(ncclComm_t handle) noexcept;

/// Creates a communicator for the current device without blocking in NCCL. Calls on the result
/// block, if NCCL supports ncclCommSplit (2.18). Throws TransportError if not done at `until`.
ncclComm_t make_communicator(const ncclUniqueId& id, int rank, int ranks, Clock::time_point until);

}  // namespace tersor::nccl
