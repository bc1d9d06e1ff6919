#include "comm/transport/host/shared_lock.h"

#include <algorithm>
#include <utility>

namespace tersor::host {

void SharedLock::unlock() {
  std::array<Event*, kMaxSignals> signals;
  const auto end = std::copy_n(signals_.begin(), std::exchange(count_, 0), signals.begin());
  mutex_.unlock();
  std::for_each(signals.begin(), end, [](Event* event) { event->signal(); });
}

Event& SharedLock::take_event() {
  if (free_events_.empty()) return events_.emplace_back();
  Event& event = *free_events_.back();
  free_events_.pop_back();
  return event;
}

bool SharedLock::will_signal(const Event& event) const {
  const auto end = signals_.begin() + count_;
  return std::find(signals_.begin(), end, &event) != end;
}

void SharedLock::signal(Event& event) {
  if (will_signal(event)) return;
  if (count_ == kMaxSignals) return event.signal();
  signals_[count_++] = &event;
}

}  // namespace tersor::host
