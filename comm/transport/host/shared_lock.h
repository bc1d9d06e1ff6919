// State shared by wires with a common lock.
#pragma once

#include <tersor/network.h>

#include <array>
#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include "comm/transport/host/block_pool.h"
#include "comm/transport/host/event.h"

namespace tersor::host {

/// A mutex. Signals events only after the release, so a woken thread finds the mutex free.
class SharedLock {
 public:
  void lock() { mutex_.lock(); }
  void unlock();
  /// Requires the lock. Events live as long as the shared lock, because the woken thread may be
  /// gone when the signal comes. A returned event is reused, descriptor included, and may receive a
  /// late signal.
  Event& take_event();
  void return_event(Event& event) { free_events_.push_back(&event); }
  void signal(Event& event);
  /// Requires the lock. True if the event will be signaled after the release.
  bool will_signal(const Event& event) const;

 private:
  // Further events are signaled at once, with the lock held.
  static constexpr std::size_t kMaxSignals = 32;

  std::mutex mutex_;
  std::deque<Event> events_;
  std::vector<Event*> free_events_;
  std::array<Event*, kMaxSignals> signals_;
  std::size_t count_ = 0;  // number of used entries of `signals_`
};

}  // namespace tersor::host

namespace tersor {

struct Wire::Shared {
  host::BlockPools pools;
  host::SharedLock shared_lock;
};

}  // namespace tersor
