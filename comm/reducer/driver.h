// Drives a sender: in a thread of the driver, in the caller's thread inside the reducer's calls, or
// in the caller's thread in the same order on all ranks (queueing transports).
#pragma once

#include "comm/reducer/sender.h"

#include <cstdint>
#include <memory>

namespace tersor {

class Driver {
 public:
  /// kYes: send all requested messages to the end.
  enum class Drain : std::uint8_t { kNo, kYes };

  explicit Driver(Sender& sender) : sender_(sender) {}
  virtual ~Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// Call after a message or the order was requested.
  virtual void wake(LockedStep&) {}
  /// Sends the requested messages before returning, unless a thread of the driver sends.
  virtual void send(Drain) {}
  /// Waits for a change, or makes progress. Releases the lock meanwhile.
  virtual void wait(LockedStep& step) = 0;
  /// Makes progress, unless a thread of the driver does. Never waits.
  virtual void progress() = 0;
  /// Throws the faults found since the last call, if no other function reports these faults.
  virtual void check_faults() {}

 protected:
  Sender& sender_;
};

/// Chooses the driver by the option, the transport and the number of ranks. The sender must outlive
/// the driver.
std::unique_ptr<Driver> make_driver(ProgressBy progress, const ExchangeContext& context,
                                    Sender& sender);

}  // namespace tersor
