// State shared by wires with a common lock.
#pragma once

#include <tersor/network.h>

#include <array>
#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include "comm/transport/host/bell.h"
#include "comm/transport/host/block_pool.h"

namespace tersor::host {

/// A mutex. Signals events only after the release, so a woken thread finds the mutex free.
class Gate {
 public:
  void lock() { mutex_.lock(); }
  void unlock();
  /// Requires the lock. Events live as long as the shared lock, because the woken thread may be
  /// gone when the signal comes. A returned event is reused, descriptor included, and may receive a
  /// late signal.
  Bell& take_bell();
  void give_back(Bell& bell) { free_bells_.push_back(&bell); }
  void ring(Bell& bell);
  /// Requires the lock. True if the event will be signaled after the release.
  bool will_ring(const Bell& bell) const;

 private:
  // Further events are signaled at once, with the lock held.
  static constexpr std::size_t kMostRings = 32;

  std::mutex mutex_;
  std::deque<Bell> bells_;
  std::vector<Bell*> free_bells_;
  std::array<Bell*, kMostRings> rings_;
  std::size_t count_ = 0;  // number of used entries of `rings_`
};

}  // namespace tersor::host

namespace tersor {

struct Wire::Shared {
  host::BlockPools pools;
  host::Gate gate;
};

}  // namespace tersor
