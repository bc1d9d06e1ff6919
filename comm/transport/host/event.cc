#include "comm/transport/host/event.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>

namespace tersor::host {
namespace {

constexpr std::chrono::microseconds kYieldTime{30};  // before a thread sleeps
constexpr unsigned long kTimerSlack = 1'000;         // ns; the default slack of a thread is 50 us

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

/// Gives the thread exact timers while this object lives.
class ExactTimers {
 public:
  ExactTimers() : before_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, kTimerSlack); }
  ~ExactTimers() {
    if (before_ > 0) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(before_));
  }
  ExactTimers(const ExactTimers&) = delete;
  ExactTimers& operator=(const ExactTimers&) = delete;

 private:
  int before_;
};

timespec to_timespec(Clock::time_point time) {
  const auto since_boot = time.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since_boot);
  const std::chrono::nanoseconds remainder = since_boot - seconds;
  return {static_cast<time_t>(seconds.count()), static_cast<long>(remainder.count())};
}

}  // namespace

void Event::signal() {
  signals_.fetch_add(1);
  if (asleep_.load()) syscall(SYS_futex, &signals_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  if (waits_externally_.load()) eventfd_write(alarm_, 1);
}

// While ranks only communicate, yielding is faster than sleeping. If other threads compute, a
// single time slice consumes the time, and sleeping is better: a signal then interrupts the
// computing thread.
void Event::wait(std::uint32_t seen, Clock::time_point until, WaitMode mode) {
  if (mode == WaitMode::kYieldFirst) {
    const auto end = std::min(until, Clock::now() + kYieldTime);
    while (signals() == seen && Clock::now() < end) sched_yield();
    if (signals() == seen) sleep(seen, until);
  } else if (signals() == seen) {
    const ExactTimers exact;
    sleep(seen, until);
  }
}

void Event::sleep(std::uint32_t seen, Clock::time_point until) {
  const timespec time = to_timespec(until);
  asleep_.store(true);
  syscall(SYS_futex, &signals_, FUTEX_WAIT_BITSET_PRIVATE, seen, &time, nullptr,
          FUTEX_BITSET_MATCH_ANY);
  asleep_.store(false);
}

}  // namespace tersor::host
