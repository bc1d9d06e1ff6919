// Wakes one waiting thread, and keeps count, so that no ring is lost. On Linux's futex: a waiting
// rank comes back microseconds after its ring or its time, where a condition variable takes tens.
#pragma once

#include <tersor/transport.h>

#include <atomic>
#include <cstdint>

namespace tersor::host {

class Bell {
 public:
  /// How to wait: asleep at once, or lending the core to others for some microseconds before.
  enum class Patience { kLong, kShort };

  std::uint32_t rings() const { return rings_.load(std::memory_order_acquire); }
  void ring();
  /// Returns as soon as `rings()` is not `seen` any more, or `until` has come; seldom earlier.
  void wait(std::uint32_t seen, Clock::time_point until, Patience patience);

 private:
  void sleep(std::uint32_t seen, Clock::time_point until);

  std::atomic<std::uint32_t> rings_{0};
  std::atomic<bool> asleep_{false};
};

}  // namespace tersor::host
