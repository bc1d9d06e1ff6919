// Makes the connections of a rank on a dedicated thread: connects to other ranks, accepts
// connections and authenticates both ends. Without the thread, a computing rank would be
// unreachable for first connections, even for the announcement of a fault. The thread sleeps while
// idle and ends once all connections exist.
//
// Both ranks may connect at once: then the lower rank's connection is used. Connections without a
// proof of identity are limited in number and time.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport/tcp/calls.h"
#include "comm/transport/tcp/reactor.h"
#include "comm/transport/tcp/socket.h"

namespace tersor::tcp {

/// A rank with the addresses of all ranks.
struct RankAddress {
  int rank = 0;
  std::vector<Endpoint> endpoints;  ///< listening address of each rank
  std::vector<int> host_names;      ///< see Wire::host_names
  Secret secret;
  std::size_t connections = 1;  ///< number of connections per pair
  TcpProtection protect = TcpProtection::kNone;
  Clock::time_point listening_until = {};  ///< time limit for a rank to begin listening
  Clock::duration timeout = {};            ///< time limit for the network during a first connection
  std::unique_ptr<Listener> listener;      ///< of this rank
};

/// Identifies a connection by peer and number.
struct ConnectionId {
  int peer = 0;
  std::size_t connection = 0;
};

/// A connection authenticated by both ends; without a socket, the reason for a failure.
struct ConnectionResult {
  ConnectionId name;
  std::optional<Socket> socket = {};
  std::string failure = {};
};

class ConnectionManager final : public Watched {
 public:
  /// `address` must outlive this object; takes over its listener. Interrupts `wire` after adding to
  /// `made`. Throws TransportError if the system has no free descriptors or threads.
  ConnectionManager(RankAddress& address, Reactor& wire);
  ~ConnectionManager() override;

  /// Requests a connection. `made` returns finished connections, including those requested by other
  /// ranks.
  void want(ConnectionId name);
  std::vector<ConnectionResult> made();

  std::size_t strangers() const { return strangers_count_.load(); }
  /// True if other ranks may connect.
  bool listens() const { return serving_.load(); }

  bool act() override;
  bool busy() const override { return more_; }

  // Called by the calls. May destroy the incoming call, but not the outgoing call.
  /// Called after the caller's proof of identity.
  void admit(IncomingCall& call);
  /// Called if the caller sends invalid messages, does not know the secret, or hung up.
  void drop(IncomingCall& call);
  void answered(OutgoingCall& call, Verdict verdict);
  void failed(OutgoingCall& call, const std::string& why);
  // Used by the calls.
  Reactor& reactor() { return reactor_; }
  const Secret& secret() const { return address_.secret; }
  TcpProtection protection() const { return address_.protect; }
  std::uint32_t rank() const { return static_cast<std::uint32_t>(address_.rank); }

 private:
  /// The state of a connection to be made.
  struct ConnectionProgress {
    std::unique_ptr<OutgoingCall> call = {};
    bool connected = false;
  };

  void serve();
  void take_wishes();
  void begin_call(ConnectionId name);
  Clock::time_point next_deadline() const;
  void look_at_clock();
  void drop_first() {
    if (!strangers_.empty()) strangers_.pop_front();
  }
  bool accept();
  ConnectionProgress& link(ConnectionId name) {
    return links_[static_cast<std::size_t>(name.peer) * address_.connections + name.connection];
  }
  Hello hello_to(ConnectionId name) const;
  Verdict judge(const Hello& caller);
  void put_away(ConnectionId name);
  void finish(ConnectionId name, Socket socket);
  void deliver(ConnectionResult connection);

  // Used by the thread only.
  const RankAddress& address_;
  Reactor reactor_;
  std::unique_ptr<Listener> listener_;
  std::vector<ConnectionProgress> links_;                // by peer and connection
  std::size_t missing_;                                  // number of missing connections
  std::list<std::unique_ptr<IncomingCall>> strangers_;   // in order of arrival
  std::vector<std::unique_ptr<OutgoingCall>> finished_;  // finished calls that may still be running
  bool more_ = false;                                    // True if more connections may wait
  bool crowded_ = false;                                 // True if no descriptors are free

  // Thread-safe.
  Reactor& wire_;
  std::atomic<std::size_t> strangers_count_{0};
  std::atomic<bool> serving_{true};
  std::atomic<bool> any_made_{false};
  std::mutex mutex_;
  std::vector<ConnectionId> wishes_;
  std::vector<ConnectionResult> made_;

  std::jthread thread_;
};

}  // namespace tersor::tcp
