// Who drives a sender: a thread of its own, the caller inside the reducer's calls, or the caller in
// an order that is the same on all ranks, over a transport that queues.
#pragma once

#include "comm/reducer/sender.h"

#include <cstdint>
#include <memory>

namespace tersor {

class Driver {
 public:
  /// Whether everything that was requested is to be sent to its end.
  enum class Drain : std::uint8_t { kNo, kYes };

  explicit Driver(Sender& sender) : sender_(sender) {}
  virtual ~Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// Something was requested, or the order is wanted.
  virtual void wake(LockedStep&) {}
  /// Sends what was requested, where nobody else does before a call returns.
  virtual void send(Drain) {}
  /// Waits for something to change, or changes it; the lock is let go for that.
  virtual void wait(LockedStep& step) = 0;
  /// Moves what is under way, where no thread does. Never waits.
  virtual void progress() = 0;
  /// Throws what was found wrong since the last call, where nobody else hears of it.
  virtual void hear_faults() {}

 protected:
  Sender& sender_;
};

enum class Driving : std::uint8_t { kThread, kCaller, kQueueing };

/// The sender outlives the driver.
std::unique_ptr<Driver> make_driver(Driving driving, Sender& sender);

}  // namespace tersor
