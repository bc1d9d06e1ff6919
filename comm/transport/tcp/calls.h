// One end of a connection that is being made: from the first byte until both ends are proven.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "comm/transport/tcp/handshake.h"
#include "comm/transport/tcp/reactor.h"
#include "comm/transport/tcp/socket.h"

namespace tersor::tcp {

class Switchboard;

/// Somebody calls.
class IncomingCall final : public Watched {
 public:
  /// How long a caller may take to prove who it is.
  static constexpr std::chrono::seconds kProvenWithin{10};

  IncomingCall(Switchboard& owner, Socket socket);
  ~IncomingCall() override;

  Clock::time_point deadline() const { return deadline_; }
  /// Once it is proven.
  Hello caller() const { return *answerer_.caller(); }
  /// The last word of the handshake. False where it does not leave.
  bool answer(Verdict verdict) { return socket_.write_all(bytes_of(answerer_.answer(verdict))); }
  /// The connection, which somebody else watches from now on.
  Socket release();

  bool act() override;
  bool busy() const override { return false; }

 private:
  bool listen();

  Switchboard& owner_;
  Socket socket_;
  Answerer answerer_;
  const Clock::time_point deadline_ = Clock::now() + kProvenWithin;
};

/// How long a rank that cannot be reached is called again.
struct CallPatience {
  Clock::time_point refused;  ///< until when it may not yet listen
  Clock::time_point away;     ///< until when the network may be in the way
};

/// This rank calls another one, again and again where that is crowded, or cannot be reached yet.
class OutgoingCall final : public Watched {
 public:
  OutgoingCall(Switchboard& owner, const Hello& hello, const Endpoint& to,
               const CallPatience& patience);
  ~OutgoingCall() override { hang_up(); }

  const Hello& hello() const { return hello_; }
  const Endpoint& to() const { return to_; }
  void dial();
  /// When it wants to dial again; far away where it does not.
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

  Switchboard& owner_;
  const Hello hello_;
  const Endpoint to_;
  const CallPatience patience_;
  std::optional<Socket> socket_;
  std::optional<Caller> caller_;  // once connected
  int ended_calls_ = 0;           // by the other end, before it was proven
  Clock::time_point again_ = Clock::time_point::max();
};

}  // namespace tersor::tcp
