// An end of a connection being made, from the first byte to the proof by both ends.
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
class IncomingCall final : public Watched {
 public:
  /// Time limit for the caller's proof.
  static constexpr std::chrono::seconds kProvenWithin{10};

  IncomingCall(ConnectionManager& owner, Socket socket);
  ~IncomingCall() override;

  Clock::time_point deadline() const { return deadline_; }
  /// The proven caller.
  Hello caller() const { return *answerer_.caller(); }
  /// Sends the last message of the handshake. Returns false on failure.
  bool answer(Verdict verdict) { return socket_.write_all(bytes_of(answerer_.answer(verdict))); }
  /// Hands the connection over to another handler.
  Socket release();

  bool act() override;
  bool busy() const override { return false; }

 private:
  bool listen();

  ConnectionManager& owner_;
  Socket socket_;
  Answerer answerer_;
  const Clock::time_point deadline_ = Clock::now() + kProvenWithin;
};

/// How long to retry an unreachable rank.
struct CallTimeouts {
  Clock::time_point refused;  ///< time limit for a rank to begin listening
  Clock::time_point away;     ///< time limit for network failures
};

/// A connection to another rank, with retries if the rank is overloaded or unreachable.
class OutgoingCall final : public Watched {
 public:
  OutgoingCall(ConnectionManager& owner, const Hello& hello, const Endpoint& to,
               const CallTimeouts& timeouts);
  ~OutgoingCall() override { hang_up(); }

  const Hello& hello() const { return hello_; }
  const Endpoint& to() const { return to_; }
  void dial();
  /// The time of the next attempt; far in the future if there is none.
  Clock::time_point again() const { return again_; }
  Socket release();
  void hang_up();

  bool act() override;
  bool busy() const override { return false; }

 private:
  bool connect();
  bool prove();
  bool not_reached(const Refusal& why);
  bool hung_up(const std::string& why);

  ConnectionManager& owner_;
  const Hello hello_;
  const Endpoint to_;
  const CallTimeouts timeouts_;
  std::optional<Socket> socket_;
  std::optional<Caller> caller_;  // after connecting
  int ended_calls_ = 0;           // number of calls ended by the peer before the proof
  Clock::time_point again_ = Clock::time_point::max();
};

}  // namespace tersor::tcp
