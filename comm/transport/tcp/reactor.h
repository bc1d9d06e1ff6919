// An event loop for sockets: which sockets are readable or writable, and the handlers to call.
// Asio's loop cannot sleep without the lock needed by the handlers, so Asio is not used here.
#pragma once

#include <tersor/transport.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "comm/transport/tcp/descriptor.h"

namespace tersor::tcp {

class EventHandler {
 public:
  virtual ~EventHandler() = default;
  /// Reads and writes as much as possible, and clears exhausted flags. Returns true if anything
  /// progressed.
  virtual bool on_events() = 0;
  /// True if the handler has more work at once.
  virtual bool has_work() const = 0;

 protected:
  bool readable_ = false;
  bool writable_ = false;
  bool hangup_ = false;  ///< True if the peer sends no more or there is an error

 private:
  friend class Reactor;
  bool scheduled_ = false;  // True if in the reactor's list
};

/// Single-threaded, except for `sleep` and `interrupt`.
class Reactor {
 public:
  /// Throws TransportError if the system has no free descriptors.
  Reactor();

  /// Reports each change of the socket once, until the socket is closed.
  void add(int socket, EventHandler& handler);
  /// Stops reporting changes and calling the handler.
  void remove(int socket, EventHandler& handler);
  /// Calls the handler in the next poll.
  void schedule(EventHandler& handler);
  /// Polls once and calls all handlers with events; never waits. Returns true if anything
  /// progressed. A handler may add and remove handlers, including itself.
  bool poll();
  /// Returns as soon as there is work, the descriptor `alarm` is readable (none: -1), or at
  /// `until`. Thread-safe, also for concurrent calls.
  void sleep(Clock::time_point until, int alarm = -1) const;
  /// Ends the current or, if there is none, the next sleep. Thread-safe.
  void interrupt() const;

 private:
  void poll_events();
  void update_has_work();
  void record(std::uint32_t events, void* data);

  const Descriptor epoll_;
  const Descriptor alarm_;
  std::vector<EventHandler*> scheduled_;
  std::vector<EventHandler*> running_;  // in this poll; null if removed
  // True if a handler has work in the next poll, even without events.
  std::atomic<bool> has_work_{false};
  mutable std::atomic<int> sleepers_{0};
};

}  // namespace tersor::tcp
