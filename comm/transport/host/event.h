// An event that wakes a single waiting thread and counts signals, so no signal is lost. Built on
// Linux's futex: a waiting rank wakes within microseconds of the signal or the deadline. A
// condition variable takes tens of microseconds.
#pragma once

#include <tersor/transport.h>

#include <atomic>
#include <cstdint>
#include <functional>

namespace tersor::host {

class Event {
 public:
  /// How to wait: sleep at once, or first yield the core for a few microseconds.
  enum class WaitMode { kSleep, kYieldFirst };

  Event() = default;
  ~Event();

  std::uint32_t signals() const { return signals_.load(std::memory_order_acquire); }
  void signal();
  /// Returns when `signals()` differs from `seen` or at `until`. Rarely returns earlier.
  void wait(std::uint32_t seen, Clock::time_point until, WaitMode mode);
  /// Calls `rest(alarm)` unless the event was already signaled. A signal makes the descriptor
  /// `alarm` readable; -1 if the system has no free descriptors. Single-threaded.
  void wait_externally(std::uint32_t seen, const std::function<void(int alarm)>& rest);

 private:
  void sleep(std::uint32_t seen, Clock::time_point until);

  std::atomic<std::uint32_t> signals_{0};
  std::atomic<bool> asleep_{false};
  std::atomic<bool> waits_externally_{false};
  int alarm_ = -1;  // created by the first `wait_externally`
};

}  // namespace tersor::host
