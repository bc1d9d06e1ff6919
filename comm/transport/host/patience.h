// How a thread waits between two polls of a network that moves nothing while nobody calls it.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "comm/transport/host/bell.h"

namespace tersor::host {

/// Lends the core while those who take it give it back soon, and naps otherwise. A thread that
/// computes keeps a lent core for milliseconds, but is interrupted at once by one whose nap is
/// over.
class Patience {
 public:
  /// Call it where something moved, and before the first poll.
  void renew() { news_ = kNow; }

  /// Waits for a moment, unless the poll before did (`lent`); until the bell rings at the latest,
  /// or `until`. When it looked at the clock last.
  Clock::time_point wait(Bell& bell, std::uint32_t seen, Clock::time_point until, bool lent) {
    return wait(kLending, lent, [&](Clock::time_point now) {
      bell.wait(seen, std::min(until, now + kNap), Bell::Patience::kLong);
    });
  }

  /// As above, of a network that wakes who sleeps: `sleep` does so until it has news.
  template <typename Sleep>
  Clock::time_point wait_for_news(Sleep&& sleep) {
    return wait(kLendingBeforeSleep, false, [&](Clock::time_point) { sleep(); });
  }

 private:
  static constexpr std::chrono::microseconds kLending{500};  // without news
  static constexpr std::chrono::microseconds kLendingBeforeSleep{50};
  static constexpr std::chrono::microseconds kNap{50};
  static constexpr std::chrono::microseconds kLongTurn{600};  // of somebody who computes
  static constexpr unsigned kNapsAfter = 200;                 // such a turn

  static constexpr Clock::time_point kNow = Clock::time_point::max();  // once somebody looks

  template <typename Nap>
  Clock::time_point wait(Clock::duration lending, bool lent, Nap&& nap) {
    const auto now = Clock::now();
    if (news_ == kNow) news_ = looked_ = now;
    if (now - looked_ > kLongTurn) naps_ = kNapsAfter;
    if (naps_ == 0 && now - news_ < lending) {
      looked_ = now;
      if (!lent) sched_yield();
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
