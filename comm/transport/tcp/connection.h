// A connection to a peer. Reports errors instead of throwing.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/transport/tcp/message_reader.h"
#include "comm/transport/tcp/reactor.h"
#include "comm/transport/tcp/send_queue.h"
#include "comm/transport/tcp/socket.h"

namespace tersor::tcp {

class Connection final : public EventHandler {
 public:
  struct Owner {
    Reactor& reactor;
    std::vector<std::shared_ptr<Job>>& done;  ///< completed sends
    MakeBlock make_block;                     ///< for copied payloads
    std::function<void()> connect;            ///< requests the connection
    std::function<void()> on_read;            ///< called after received bytes
    std::function<void()> drain;              ///< reads all connections before one is lost
    std::function<void(const std::string& cause)> on_lost;  ///< called once, after an error
  };

  Connection(std::size_t number, MessageReader& message_reader, Owner owner)
      : number_(number), message_reader_(message_reader), owner_(std::move(owner)) {}
  ~Connection() override { close_socket(); }

  /// Queues an item in order; faults go before all items not yet begun. Copies payloads without an
  /// owner, unless sent at once.
  void send(SendItem item);
  /// Copies the unsent bytes of a job into a block. If memory is exhausted, the connection is lost.
  void keep(const Job* job);
  /// True if everything has left, except goodbyes to a peer without a connection.
  bool quiet() const { return !has_unsent() || (!socket_ && send_queue_.has_only_goodbyes()); }
  /// Continues with an established connection.
  void attach(Socket socket);
  /// Reads more if the parser has free memory now.
  void resume_reading();
  /// Reads the available bytes of a connection about to be lost. Returns true if bytes were
  /// received.
  bool drain();
  /// Closes the connection and adds incomplete jobs to `dropped`.
  void close(std::vector<std::shared_ptr<Job>>& dropped);
  Socket* socket() { return socket_ ? &*socket_ : nullptr; }

  bool on_events() override;
  bool has_work() const override;

 private:
  bool has_unsent() const { return !send_queue_.empty() || (socket_ && socket_->pending()); }
  void close_socket();
  bool read();
  bool handle_read(const IoResult& result);
  bool write();

  const std::size_t number_;
  MessageReader& message_reader_;
  const Owner owner_;
  bool requested_ = false;  // True if the connection was requested
  std::optional<Socket> socket_;
  SendQueue send_queue_;
  std::string write_error_;
};

}  // namespace tersor::tcp
