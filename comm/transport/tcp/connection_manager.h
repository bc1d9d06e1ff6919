// Makes the connections of a rank on a dedicated thread: connects to other ranks, accepts
// connections and authenticates both ends. Without the thread, a computing rank would be
// unreachable for first connections, even for the announcement of a fault. The thread sleeps while
// idle and ends once all connections exist.
//
// Both ranks may connect at once: then the lower rank's connection is used. Unauthenticated
// connections are limited in number and time.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport/tcp/pending_connections.h"
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
  Clock::time_point listen_deadline = {};  ///< time limit for a rank to begin listening
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
  ConnectionId id;
  std::optional<Socket> socket = {};
  std::string failure = {};
};

class ConnectionManager final : public EventHandler {
 public:
  /// `address` must outlive this object; takes over its listener. Interrupts `wire` after each
  /// completed connection. Throws TransportError without free descriptors or threads.
  ConnectionManager(RankAddress& address, Reactor& wire);
  ~ConnectionManager() override;

  /// Requests a connection. `take_completed` returns finished connections, including those
  /// requested by other ranks.
  void request(ConnectionId id);
  std::vector<ConnectionResult> take_completed();

  bool on_events() override;
  bool has_work() const override { return more_; }

  // Called by the connections. May destroy the incoming, but not the outgoing connection.
  void on_authenticated(IncomingConnection& connection);
  /// Called if the client sends invalid messages, does not know the secret, or disconnects.
  void drop(IncomingConnection& connection);
  void on_verdict(OutgoingConnection& connection, Verdict verdict);
  void on_failed(OutgoingConnection& connection, const std::string& reason);
  // Used by the connections.
  Reactor& reactor() { return reactor_; }
  const Secret& secret() const { return address_.secret; }
  TcpProtection protection() const { return address_.protect; }
  std::uint32_t rank() const { return static_cast<std::uint32_t>(address_.rank); }

 private:
  /// The state of a connection to be made.
  struct ConnectionProgress {
    std::unique_ptr<OutgoingConnection> outgoing = {};
    bool connected = false;
  };

  void serve();
  void take_requests();
  void start_connection(ConnectionId id);
  Clock::time_point next_deadline() const;
  void check_deadlines();
  void drop_oldest() {
    if (!unauthenticated_.empty()) unauthenticated_.pop_front();
  }
  bool accept();
  ConnectionProgress& link(ConnectionId id) {
    return links_[static_cast<std::size_t>(id.peer) * address_.connections + id.connection];
  }
  Hello hello_to(ConnectionId id) const;
  Verdict check_hello(const Hello& hello);
  void retire(ConnectionId id);
  void finish(ConnectionId id, Socket socket);
  void deliver(ConnectionResult result);

  // Used by the thread only.
  const RankAddress& address_;
  Reactor reactor_;
  std::unique_ptr<Listener> listener_;
  std::vector<ConnectionProgress> links_;                           // by peer and connection
  std::size_t missing_;                                             // number of missing connections
  std::list<std::unique_ptr<IncomingConnection>> unauthenticated_;  // in order of arrival
  std::vector<std::unique_ptr<OutgoingConnection>> retired_;  // finished, but may still be running
  bool more_ = false;                                         // True if more connections may wait
  bool exhausted_ = false;                                    // True if no descriptors are free

  // Thread-safe.
  Reactor& wire_;
  std::atomic<bool> serving_{true};
  std::atomic<bool> any_completed_{false};
  std::mutex mutex_;
  std::vector<ConnectionId> requests_;
  std::vector<ConnectionResult> completed_;

  std::jthread thread_;
};

}  // namespace tersor::tcp
