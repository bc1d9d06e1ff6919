// How a thread waits between two polls of a network without background progress.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "comm/transport/host/event.h"

namespace tersor::host {

/// A back-off policy: yields the core while other threads return it quickly, and naps otherwise. A
/// computing thread keeps a yielded core for milliseconds, but the kernel interrupts such a thread
/// at once when a nap ends.
class BackoffPolicy {
 public:
  /// Call before the first poll and after each poll with progress.
  void reset() { last_progress_ = kUnset; }

  /// Waits for a moment, unless the preceding poll already yielded (`yielded`). Waits at most
  /// until a signal of `event` or `until`. Returns the time of the last clock reading.
  Clock::time_point wait(Event& event, std::uint32_t seen, Clock::time_point until, bool yielded) {
    return wait(kMaxYieldTime, yielded, [&](Clock::time_point now) {
      event.wait(seen, std::min(until, now + kNap), Event::WaitMode::kSleep);
    });
  }

  /// Same for a network that wakes sleeping threads: `sleep` returns at an event.
  template <typename Sleep>
  Clock::time_point wait_for_event(Sleep&& sleep) {
    return wait(kMaxYieldTimeBeforeSleep, false, [&](Clock::time_point) { sleep(); });
  }

 private:
  static constexpr std::chrono::microseconds kMaxYieldTime{500};  // without progress
  static constexpr std::chrono::microseconds kMaxYieldTimeBeforeSleep{50};
  static constexpr std::chrono::microseconds kNap{50};
  // An iteration longer than this time shows a computing thread.
  static constexpr std::chrono::microseconds kLongIteration{600};
  static constexpr unsigned kNapsAfter = 200;  // number of naps after a long iteration

  static constexpr Clock::time_point kUnset = Clock::time_point::max();  // set at the next wait

  template <typename Nap>
  Clock::time_point wait(Clock::duration yield_time, bool yielded, Nap&& nap) {
    const auto now = Clock::now();
    if (last_progress_ == kUnset) last_progress_ = last_poll_ = now;
    if (now - last_poll_ > kLongIteration) naps_ = kNapsAfter;
    if (naps_ == 0 && now - last_progress_ < yield_time) {
      last_poll_ = now;
      if (!yielded) sched_yield();
      return now;
    }
    if (naps_ != 0) --naps_;
    nap(now);
    return last_poll_ = Clock::now();
  }

  Clock::time_point last_progress_ = kUnset;
  Clock::time_point last_poll_ = {};
  unsigned naps_ = 0;
};

}  // namespace tersor::host
