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
  void renew() { news_ = kNow; }

  /// Waits for a moment, unless the preceding poll already yielded (`borrowed`). Waits at most
  /// until a signal of `event` or `until`. Returns the time of the last clock reading.
  Clock::time_point wait(Event& event, std::uint32_t seen, Clock::time_point until, bool borrowed) {
    return wait(kYielding, borrowed, [&](Clock::time_point now) {
      event.wait(seen, std::min(until, now + kNap), Event::WaitMode::kLong);
    });
  }

  /// Same for a network that wakes sleeping threads: `sleep` returns when there is news.
  template <typename Sleep>
  Clock::time_point wait_for_news(Sleep&& sleep) {
    return wait(kYieldingBeforeSleep, false, [&](Clock::time_point) { sleep(); });
  }

 private:
  static constexpr std::chrono::microseconds kYielding{500};  // without progress
  static constexpr std::chrono::microseconds kYieldingBeforeSleep{50};
  static constexpr std::chrono::microseconds kNap{50};
  // An iteration longer than this time shows a computing thread.
  static constexpr std::chrono::microseconds kLongIteration{600};
  static constexpr unsigned kNapsAfter = 200;  // number of naps after a long iteration

  static constexpr Clock::time_point kNow = Clock::time_point::max();  // set at the next wait

  template <typename Nap>
  Clock::time_point wait(Clock::duration yielding, bool borrowed, Nap&& nap) {
    const auto now = Clock::now();
    if (news_ == kNow) news_ = looked_ = now;
    if (now - looked_ > kLongIteration) naps_ = kNapsAfter;
    if (naps_ == 0 && now - news_ < yielding) {
      looked_ = now;
      if (!borrowed) sched_yield();
      return now;
    }
    if (naps_ != 0) --naps_;
    nap(now);
    return looked_ = Clock::now();
  }

  Clock::time_point news_ = kNow;
  Clock::time_point looked_ = {};
  unsigned naps_ = 0;
};

}  // namespace tersor::host
