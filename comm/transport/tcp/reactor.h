// Which sockets have something to read, or room to write, and whose turn that makes it. Instead of
// Asio's loop, which cannot be slept on without the lock that its handlers need.
#pragma once

#include <tersor/transport.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "comm/transport/tcp/descriptor.h"

namespace tersor::tcp {

/// Somebody who acts when there is news of a socket.
class Watched {
 public:
  virtual ~Watched() = default;
  /// Reads and writes what can be, and clears what is used up. True where something moved.
  virtual bool act() = 0;
  /// Whether there is more to do at once.
  virtual bool busy() const = 0;

 protected:
  bool readable_ = false;
  bool writable_ = false;
  bool ended_ = false;  ///< the other end sends no more, or there is an error

 private:
  friend class Reactor;
  bool active_ = false;  // in the reactor's list
};

/// One thread at a time, but for `sleep` and `interrupt`.
class Reactor {
 public:
  /// Throws TransportError where the system has no more descriptors.
  Reactor();

  /// Each change is told once, until the socket is closed.
  void watch(int socket, Watched& who);
  /// No more news of it, and it does not act any more.
  void forget(int socket, Watched& who);
  /// It acts with the next turn.
  void activate(Watched& who);
  /// Lets act who has news; never waits. True where something moved. What acts may watch and
  /// forget, itself too.
  bool turn();
  /// Returns as soon as there is something to do, the descriptor `alarm` is readable (none: -1) or
  /// `until` has come. Any thread, and several at once.
  void sleep(Clock::time_point until, int alarm = -1) const;
  /// Ends a sleep, the next one if there is none. Any thread.
  void interrupt() const;

 private:
  void look();
  void note_busy();
  void note(std::uint32_t events, void* who);

  const Descriptor epoll_;
  const Descriptor alarm_;
  std::vector<Watched*> active_;
  std::vector<Watched*> acting_;   // in this turn; null where it was forgotten
  std::atomic<bool> busy_{false};  // somebody acts with the next turn, whatever is new
  mutable std::atomic<int> sleepers_{0};
};

}  // namespace tersor::tcp
