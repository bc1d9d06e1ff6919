// An event loop for sockets: which sockets are readable or writable, and the handlers to call.
// Asio's loop cannot sleep without the lock needed by the handlers, so Asio is not used here.
#pragma once

#include <tersor/transport.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "comm/transport/tcp/descriptor.h"

namespace tersor::tcp {

/// A handler of socket events.
class Watched {
 public:
  virtual ~Watched() = default;
  /// Reads and writes as much as possible, and clears exhausted flags. Returns true if anything
  /// progressed.
  virtual bool act() = 0;
  /// True if the handler has more work at once.
  virtual bool busy() const = 0;

 protected:
  bool readable_ = false;
  bool writable_ = false;
  bool ended_ = false;  ///< True if the peer sends no more or there is an error

 private:
  friend class Reactor;
  bool active_ = false;  // True if in the reactor's list
};

/// Single-threaded, except for `sleep` and `interrupt`.
class Reactor {
 public:
  /// Throws TransportError if the system has no free descriptors.
  Reactor();

  /// Reports each change of the socket once, until the socket is closed.
  void watch(int socket, Watched& who);
  /// Stops reporting changes and calling the handler.
  void forget(int socket, Watched& who);
  /// Calls the handler in the next poll.
  void activate(Watched& who);
  /// Polls once and calls all handlers with events; never waits. Returns true if anything
  /// progressed. A handler may watch and forget handlers, including itself.
  bool poll();
  /// Returns as soon as there is work, the descriptor `alarm` is readable (none: -1), or at
  /// `until`. Thread-safe, also for concurrent calls.
  void sleep(Clock::time_point until, int alarm = -1) const;
  /// Ends the current or, if there is none, the next sleep. Thread-safe.
  void interrupt() const;

 private:
  void look();
  void record_busy();
  void record(std::uint32_t events, void* who);

  const Descriptor epoll_;
  const Descriptor alarm_;
  std::vector<Watched*> active_;
  std::vector<Watched*> acting_;  // in this poll; null if forgotten
  // True if a handler has work in the next poll, even without events.
  std::atomic<bool> busy_{false};
  mutable std::atomic<int> sleepers_{0};
};

}  // namespace tersor::tcp
