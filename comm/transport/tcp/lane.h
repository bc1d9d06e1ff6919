// One connection with a peer that carries messages, once it is made. Errors are told, not thrown.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/transport/tcp/inbox.h"
#include "comm/transport/tcp/outbox.h"
#include "comm/transport/tcp/reactor.h"
#include "comm/transport/tcp/socket.h"

namespace tersor::tcp {

class Lane final : public Watched {
 public:
  struct Owner {
    Reactor& reactor;
    std::vector<std::shared_ptr<Job>>& done;             ///< payloads that have left
    std::function<Block(std::size_t bytes)> make_block;  ///< for what is copied
    std::function<void()> connect;                       ///< somebody is to make the connection
    std::function<void()> read;                          ///< bytes came
    std::function<void()> read_rest;                     ///< of all lanes, before one is lost
    std::function<void(const std::string& cause)> lose;  ///< the connection broke
  };

  Lane(std::size_t number, Inbox& inbox, Owner owner)
      : number_(number), inbox_(inbox), owner_(std::move(owner)) {}
  ~Lane() override { drop_socket(); }

  /// Sends it, in order; faults before all that has not begun to leave. What is nobody's is copied
  /// unless it leaves at once.
  void send(Parcel parcel);
  /// Whether all has left, but for last words to somebody who was never reached.
  bool quiet() const { return !waits() || (!socket_ && outbox_.only_goodbyes()); }
  /// Carries on with a connection.
  void open(Socket socket);
  /// What came may be read on: there may be room for it now.
  void look_again();
  /// Reads what is there now, of a connection that is about to be lost. True where bytes came.
  bool read_rest();
  /// Drops the connection; jobs that were not done go to `dropped`.
  void close(std::vector<std::shared_ptr<Job>>& dropped);
  Socket* socket() { return socket_ ? &*socket_ : nullptr; }

  bool act() override;
  bool busy() const override;

 private:
  /// True if bytes wait to leave.
  bool waits() const { return !outbox_.empty() || (socket_ && socket_->pending()); }
  void drop_socket();
  bool read();
  bool take(const Moved& moved);
  bool write();

  const std::size_t number_;
  Inbox& inbox_;
  const Owner owner_;
  bool wanted_ = false;  // somebody makes the connection, or has
  std::optional<Socket> socket_;
  Outbox outbox_;
  std::string write_error_;
};

}  // namespace tersor::tcp
