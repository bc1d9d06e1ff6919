// See clock.h. Replaces comm/transport/host/event.cc (sleeping ranks) and the standard library's
// steady clock in this program.
#include "tests/clock/clock.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "comm/transport/host/event.h"

namespace tersor {
namespace {

using host::Event;

/// A waiting rank.
struct Sleeper {
  const Event* event;
  std::uint32_t seen;
  Clock::time_point until;

  bool woken(Clock::time_point now) const { return event->signals() != seen || now >= until; }
};

class TestClock {
 public:
  Clock::time_point now() const {
    return Clock::time_point(Clock::duration(ticks_.load(std::memory_order_acquire)));
  }

  void begin(int ranks) { running_ = ranks; }

  /// Called at the end of a rank.
  void leave() {
    const std::lock_guard lock(mutex_);
    --running_;
    go_on();
  }

  void sleep(const Sleeper& sleeper) {
    std::unique_lock lock(mutex_);
    if (now() >= sleeper.until) ticks_.fetch_add(1);  // or an early rank polls forever
    if (sleeper.woken(now())) return;
    sleepers_.push_back(&sleeper);
    --running_;
    go_on();
    changed_.wait(lock, [&] { return sleeper.woken(now()); });
    ++running_;
    std::erase(sleepers_, &sleeper);
  }

  void wake() {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

 private:
  // Requires the lock. A woken rank counts as running before its return.
  void go_on() {
    if (running_ > 0 || sleepers_.empty()) return;
    Clock::time_point next = Clock::time_point::max();
    for (const Sleeper* sleeper : sleepers_) {
      if (sleeper->woken(now())) return;
      next = std::min(next, sleeper->until);
    }
    if (next == Clock::time_point::max()) {
      std::fputs("all ranks wait for each other, without end\n", stderr);
      std::abort();
    }
    ticks_.store(next.time_since_epoch().count(), std::memory_order_release);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<Clock::rep> ticks_{1'000'000'000};
  std::vector<const Sleeper*> sleepers_;
  int running_ = 0;  // ranks neither waiting nor finished
};

TestClock& test_clock() {
  static TestClock clock;
  return clock;
}

}  // namespace

void host::Event::signal() {
  signals_.fetch_add(1);
  test_clock().wake();
}

void host::Event::wait(std::uint32_t seen, Clock::time_point until, WaitMode) {
  test_clock().sleep({this, seen, until});
}

void test::run_on_clock(int ranks, const Link& link, const std::function<void(Transport&)>& body) {
  struct Leaving {
    ~Leaving() { test_clock().leave(); }
  };
  test_clock().begin(ranks);
  run_ranks(ranks, link, [&](Transport& transport) {
    const Leaving leaving;
    body(transport);
  });
}

void test::pass(Clock::duration time) {
  const Event silent;
  test_clock().sleep({&silent, 0, test_clock().now() + time});
}

double test::seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace tersor

// The program's own definition takes precedence over the standard library.
std::chrono::steady_clock::time_point std::chrono::steady_clock::now() noexcept {
  return tersor::test_clock().now();
}
