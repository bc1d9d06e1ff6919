// One communicator of NCCL: who owns it, calls that end in time, and how it is stopped.
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

/// Used by the thread of a channel and by the watcher, which calls `ask_error` and `stop`.
class Communicator {
 public:
  /// Throws InvalidArgument for null, for one of another device than the current one, and for one
  /// that was aborted or has failed, as far as NCCL tells.
  Communicator(ncclComm_t handle, Owner owner, const Fault& fault);
  /// Destroys its own; aborts it where it was stopped.
  ~Communicator();

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  Owner owner() const { return owner_; }

  /// Runs call(handle) and sees it through where the communicator does not block. While it lasts
  /// the watcher holds it to the operation's timeout. Throws TransportError with NCCL's words, or
  /// with the transport's fault.
  template <typename Call>
  void run(const Operation& operation, Call&& call) {
    const TimedCall timed(*this, operation);
    Lock lock(mutex_);
    check_state(operation);
    finish_call(call(handle_), operation, lock);
  }

  /// Tells NCCL of device memory that it will often receive into, until the end of this object.
  /// Where it refuses it goes on without.
  void enrol(ByteSpan memory);

  /// What NCCL found by itself; nothing where it is busy, or all is well.
  std::optional<std::string> ask_error();
  /// The operation whose call has not come back in its time.
  std::optional<std::string> late_call(Clock::time_point now) const;
  /// Ends what waits for other ranks: revokes where NCCL can, aborts its own. Waits until what is
  /// queued on it has ended. Never throws.
  void stop();
  bool is_stopped() const { return stopped_; }

 private:
  using Lock = std::unique_lock<std::timed_mutex>;

  /// While it lives the watcher holds a call to its time.
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
  void leave_memory();
  void let_go(Lock& lock);
  void revoke();

  const Fault& fault_;
  ncclComm_t handle_;
  Owner owner_;
  int rank_ = 0;
  int ranks_ = 0;
  std::timed_mutex mutex_;  // held while NCCL is called
  std::atomic<bool> stopped_{false};
  bool aborted_ = false;  // then the handle is gone

  std::map<std::byte*, void*> enrolled_;  // null: refused

  mutable std::mutex call_mutex_;  // of what follows
  std::optional<Clock::time_point> call_until_;
  std::string call_name_;
};

/// Destroys a communicator, or aborts it where it cannot be finished within some seconds.
void destroy(ncclComm_t handle) noexcept;

/// Makes a communicator of the current device without ever blocking in NCCL; calls on it do block,
/// where NCCL can split (2.18). Throws TransportError where it is not done at `until`.
ncclComm_t make_communicator(const ncclUniqueId& id, int rank, int ranks, Clock::time_point until);

}  // namespace tersor::nccl
