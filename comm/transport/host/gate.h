// What wires share that take each other's messages.
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

/// A mutex that rings bells once it is released: whoever wakes finds it free.
class Gate {
 public:
  void lock() { mutex_.lock(); }
  void unlock();
  /// With the lock held. The bell lives as long as the gate: whom it wakes may be gone when it
  /// rings. One that was given back is given out again, with its descriptor; it may ring late.
  Bell& take_bell();
  void give_back(Bell& bell) { free_bells_.push_back(&bell); }
  void ring(Bell& bell);
  /// With the lock held: whether a bell rings once it is released.
  bool will_ring(const Bell& bell) const;

 private:
  static constexpr std::size_t kMostRings = 32;  // more ring at once

  std::mutex mutex_;
  std::deque<Bell> bells_;
  std::vector<Bell*> free_bells_;
  std::array<Bell*, kMostRings> rings_;
  std::size_t count_ = 0;  // of `rings_`
};

}  // namespace tersor::host

namespace tersor {

struct Wire::Shared {
  host::BlockPools pools;
  host::Gate gate;
};

}  // namespace tersor
