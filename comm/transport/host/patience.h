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
  /// Call it where something moved.
  void renew() { news_ = Clock::now(); }

  /// Waits for a moment; until the bell rings at the latest, or `until`.
  void wait(Bell& bell, std::uint32_t seen, Clock::time_point until) {
    const auto now = Clock::now();
    if (naps_ == 0 && now - news_ < kLending) return lend(now);
    if (naps_ != 0) --naps_;
    bell.wait(seen, std::min(until, now + kNap), Bell::Patience::kLong);
  }

 private:
  static constexpr std::chrono::microseconds kLending{100};  // without news
  static constexpr std::chrono::microseconds kNap{50};
  static constexpr std::chrono::microseconds kLongTurn{300};  // of somebody who computes
  static constexpr unsigned kNapsAfter = 200;                 // such a turn

  void lend(Clock::time_point before) {
    sched_yield();
    if (Clock::now() - before > kLongTurn) naps_ = kNapsAfter;
  }

  Clock::time_point news_ = Clock::now();
  unsigned naps_ = 0;
};

}  // namespace tersor::host
