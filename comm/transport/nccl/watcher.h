// State shared by all channels and splits of a transport: the first fault, and a watcher thread.
// The watcher detects faults while no host thread waits. The watcher reads progress words written
// by the device and asks NCCL for errors. The watcher never calls CUDA, so streams may be under
// capture meanwhile.
#pragma once

#include <tersor/transport.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/transport/nccl/communicator.h"
#include "comm/transport/nccl/fault.h"
#include "comm/transport/nccl/queue.h"

namespace tersor::nccl {

class Watcher {
 public:
  Watcher() = default;
  ~Watcher();

  /// Starts the watcher. `rank_name` names this rank in error texts: "rank 0 of 4".
  void start(std::string rank_name);
  const std::string& rank_name() const { return rank_name_; }

  const Fault& fault() const { return fault_; }
  void check(std::string_view operation) const { fault_.check(operation); }
  /// Records the cause, stops all communicators and waits for the end. If `delay` is given, the
  /// watcher stops the communicators after this time. Until then, operations reporting the same
  /// fault to other ranks can finish.
  void fail(const std::string& cause, std::chrono::milliseconds delay = {},
            FaultSource source = FaultSource::kRanks);

  void add(Communicator& communicator) { add_to(communicators_, communicator); }
  void add(Queue& queue) { add_to(queues_, queue); }
  /// Both functions wait while communicators are being stopped.
  void remove(Communicator& communicator) { remove_from(communicators_, communicator); }
  void remove(Queue& queue) { remove_from(queues_, queue); }

  /// Converts a name to a number for the device; equal names have equal numbers.
  std::uint32_t number_of(std::string_view name);

  /// A single check of the watcher thread.
  void observe(Clock::time_point now);

 private:
  using Lock = std::unique_lock<std::mutex>;

  template <typename Kind>
  void add_to(std::vector<Kind*>& all, Kind& added) {
    const std::lock_guard lock(mutex_);
    all.push_back(&added);
  }
  template <typename Kind>
  void remove_from(std::vector<Kind*>& all, Kind& removed) {
    Lock lock(mutex_);
    changed_.wait(lock, [this] { return !stopping_; });
    std::erase(all, &removed);
  }
  std::optional<std::string> find_late(Clock::time_point now);
  std::optional<std::string> find_frame_fault();
  std::optional<std::string> find_error();
  void raise(Clock::time_point now, const std::optional<std::string>& cause,
             FaultSource source = FaultSource::kRanks);
  std::string nccl_error_text();
  void stop_all(Clock::time_point now, Lock& lock);
  template <typename Kind, typename Action>
  void for_each_in_parallel(const std::vector<Kind*>& all, const Action& action) const;
  std::string revoke_hint() const;
  void run(const std::stop_token& stop);

  Fault fault_;
  std::mutex mutex_;  // protects the following members
  std::condition_variable_any changed_;
  std::string rank_name_ = "this rank";
  std::vector<Communicator*> communicators_;
  std::vector<Queue*> queues_;
  std::vector<std::string> names_;
  std::optional<Clock::time_point> stop_at_;
  bool stopping_ = false;  // True while stopping without the lock; nothing is removed meanwhile
  int device_ = 0;
  std::jthread thread_;
};

}  // namespace tersor::nccl
