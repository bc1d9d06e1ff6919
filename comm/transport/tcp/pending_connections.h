// An end of a connection being made, from the first byte to the authentication of both ends.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "comm/transport/tcp/handshake.h"
#include "comm/transport/tcp/reactor.h"
#include "comm/transport/tcp/socket.h"

namespace tersor::tcp {

class ConnectionManager;

/// A connection from another rank.
class IncomingConnection final : public EventHandler {
 public:
  /// Time limit for the client's authentication.
  static constexpr std::chrono::seconds kHandshakeTimeout{10};

  IncomingConnection(ConnectionManager& owner, Socket socket);
  ~IncomingConnection() override;

  Clock::time_point deadline() const { return deadline_; }
  Hello client() const { return *handshake_.client(); }
  /// Sends the last message of the handshake. Returns false on failure.
  bool answer(Verdict verdict) { return socket_.write_all(bytes_of(handshake_.answer(verdict))); }
  /// Hands the connection over to another handler.
  Socket release();

  bool on_events() override;
  bool has_work() const override { return false; }

 private:
  bool read_handshake();

  ConnectionManager& owner_;
  Socket socket_;
  ServerHandshake handshake_;
  const Clock::time_point deadline_ = Clock::now() + kHandshakeTimeout;
};

/// How long to retry an unreachable rank.
struct ConnectDeadlines {
  Clock::time_point refused;      ///< time limit for a rank to begin listening
  Clock::time_point unreachable;  ///< time limit for network failures
};

/// A connection to another rank, with retries if the rank is overloaded or unreachable.
class OutgoingConnection final : public EventHandler {
 public:
  OutgoingConnection(ConnectionManager& owner, const Hello& hello, const Endpoint& to,
                     const ConnectDeadlines& deadlines);
  ~OutgoingConnection() override { disconnect(); }

  const Hello& hello() const { return hello_; }
  const Endpoint& to() const { return to_; }
  void connect();
  /// The time of the next attempt; far in the future if there is none.
  Clock::time_point retry_at() const { return retry_at_; }
  Socket release();
  void disconnect();

  bool on_events() override;
  bool has_work() const override { return false; }

 private:
  bool start_handshake();
  bool read_handshake();
  bool on_unreachable(const ConnectError& error);
  bool on_disconnect(const std::string& reason);

  ConnectionManager& owner_;
  const Hello hello_;
  const Endpoint to_;
  const ConnectDeadlines deadlines_;
  std::optional<Socket> socket_;
  std::optional<ClientHandshake> handshake_;  // after connecting
  int disconnects_ = 0;  // number of connections ended by the peer before authentication
  Clock::time_point retry_at_ = Clock::time_point::max();
};

}  // namespace tersor::tcp
