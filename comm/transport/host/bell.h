// Wakes one waiting thread, and keeps count, so that no ring is lost. On Linux's futex: a waiting
// rank comes back microseconds after its ring or its time, where a condition variable takes tens.
#pragma once

#include <tersor/transport.h>

#include <atomic>
#include <cstdint>
#include <functional>

namespace tersor::host {

class Bell {
 public:
  /// How to wait: asleep at once, or lending the core to others for some microseconds before.
  enum class Patience { kLong, kShort };

  Bell() = default;
  ~Bell();

  std::uint32_t rings() const { return rings_.load(std::memory_order_acquire); }
  void ring();
  /// Returns as soon as `rings()` is not `seen` any more, or `until` has come; seldom earlier.
  void wait(std::uint32_t seen, Clock::time_point until, Patience patience);
  /// Calls `rest` unless it has rung, with a descriptor that a ring makes readable; -1 where the
  /// system has no more of them. One thread at a time.
  void wait_elsewhere(std::uint32_t seen, const std::function<void(int alarm)>& rest);

 private:
  void sleep(std::uint32_t seen, Clock::time_point until);

  std::atomic<std::uint32_t> rings_{0};
  std::atomic<bool> asleep_{false};
  std::atomic<bool> elsewhere_{false};
  int alarm_ = -1;  // once somebody waited elsewhere
};

}  // namespace tersor::host
